//! Stores and targets that fail on purpose.
