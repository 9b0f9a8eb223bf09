//! The ledger and the one function that chooses who may reach a volume.
