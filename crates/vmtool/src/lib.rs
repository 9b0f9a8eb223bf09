//! The lab's hand inside a virtual machine. For tests only.
//!
//! [`frame`] is what the lab and a machine say to each other over one serial port, [`serve`] the machine's end of it. [`stamp`]s are blocks that say
//! who wrote them and when, [`blocks`] writes and reads them; [`drive`] measures how fast a device is. [`relay`] carries a connection to a socket of the machine, and [`record`] writes down what
//! its kernel shows of NVMe.

pub mod blocks;
pub mod drive;
pub mod frame;
pub mod record;
pub mod relay;
pub mod serve;
pub mod stamp;
