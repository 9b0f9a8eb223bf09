//! CSI.
