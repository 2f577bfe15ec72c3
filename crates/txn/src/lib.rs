//! Pure transaction state machine.
