Radix Radix
