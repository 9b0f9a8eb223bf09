//! The lab's hand inside a virtual machine. For tests only.
//!
//! [`frame`] is what the lab and a machine say to each other over one serial port, [`serve`] the machine's end of it. [`stamp`] are blocks that say
//! who wrote them and when, [`write`](writer) and [`read`](reader) them. [`relay`] carries a connection to a socket of the machine.

pub mod frame;
pub mod serve;
