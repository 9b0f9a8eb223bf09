//! The Store port and its adapters.
