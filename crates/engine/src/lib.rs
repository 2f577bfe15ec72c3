//! Engine container lifecycle and gates.
