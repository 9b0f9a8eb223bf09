//! The kernel calls that no library wraps, each as one safe function. All the `unsafe` of this crate is here and in `memory.rs`.
//!
//! Numbers and layouts are those of `linux/loop.h`, `linux/fs.h`, `linux/fiemap.h` and `linux/mount.h`; they are the same on
//! every architecture Linux runs on with 64-bit pointers.
#![allow(
    unsafe_code,
    reason = "ioctls and mount_setattr have no safe wrapper; every use says why it is sound"
)]

use rustix::fd::{AsFd, AsRawFd};
use rustix::io::{Errno, Result};
use rustix::ioctl::{Getter, IntegerSetter, Ioctl, IoctlOutput, NoArg, Opcode, Setter, Updater, ioctl};
use std::ffi::c_void;

const LOOP_CLR_FD: Opcode = 0x4C01;
const LOOP_GET_STATUS64: Opcode = 0x4C05;
const LOOP_SET_CAPACITY: Opcode = 0x4C07;
const LOOP_CONFIGURE: Opcode = 0x4C0A;
const LOOP_CTL_REMOVE: Opcode = 0x4C81;
const LOOP_CTL_GET_FREE: Opcode = 0x4C82;
const BLKROSET: Opcode = 0x125D;
const BLKROGET: Opcode = 0x125E;
const BLKGETSIZE64: Opcode = 0x8008_1272;
const FIFREEZE: Opcode = 0xC004_5877;
const FITHAW: Opcode = 0xC004_5878;
const FS_IOC_FIEMAP: Opcode = 0xC020_660B;

/// What the kernel would choose (0) is what direct I/O on the file needs, and that changes: xfs says 512 until the file
/// shares blocks with a snapshot, and 4096 then (Linux 6.18). A filesystem that was made for 512 could not be mounted
/// any more. 4096 is enough for every filesystem, and is what nvmet uses for files.
pub(crate) const BLOCK_SIZE: u32 = 4096;

pub(crate) const LO_FLAGS_READ_ONLY: u32 = 1;
pub(crate) const LO_FLAGS_AUTOCLEAR: u32 = 4;
pub(crate) const LO_FLAGS_DIRECT_IO: u32 = 16;

/// `struct loop_info64`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct LoopInfo {
    pub(crate) device: u64,
    pub(crate) inode: u64,
    pub(crate) rdevice: u64,
    pub(crate) offset: u64,
    pub(crate) size_limit: u64,
    pub(crate) number: u32,
    pub(crate) encrypt_type: u32,
    pub(crate) encrypt_key_size: u32,
    pub(crate) flags: u32,
    pub(crate) file_name: [u8; 64],
    pub(crate) crypt_name: [u8; 64],
    pub(crate) encrypt_key: [u8; 32],
    pub(crate) init: [u64; 2],
}

impl LoopInfo {
    pub(crate) const EMPTY: Self = Self {
        device: 0,
        inode: 0,
        rdevice: 0,
        offset: 0,
        size_limit: 0,
        number: 0,
        encrypt_type: 0,
        encrypt_key_size: 0,
        flags: 0,
        file_name: [0; 64],
        crypt_name: [0; 64],
        encrypt_key: [0; 32],
        init: [0; 2],
    };
}

/// `struct loop_config`.
#[repr(C)]
struct LoopConfig {
    fd: u32,
    block_size: u32,
    info: LoopInfo,
    reserved: [u64; 8],
}

const _: () = assert!(size_of::<LoopInfo>() == 232 && size_of::<LoopConfig>() == 304, "the kernel's layout");

/// An ioctl without argument whose answer is its return value.
struct Returned<const OPCODE: Opcode>;

// SAFETY: the opcodes used with this take no argument (a null pointer is passed and ignored), touch no memory of
// ours, and answer with a non-negative number.
unsafe impl<const OPCODE: Opcode> Ioctl for Returned<OPCODE> {
    type Output = IoctlOutput;
    const IS_MUTATING: bool = false;
    fn opcode(&self) -> Opcode {
        OPCODE
    }
    fn as_ptr(&mut self) -> *mut c_void {
        std::ptr::null_mut()
    }
    unsafe fn output_from_ptr(returned: IoctlOutput, _: *mut c_void) -> Result<Self::Output> {
        Ok(returned)
    }
}

/// The number of a loop device that is free now; it may be taken before it is used.
pub(crate) fn loop_free(control: impl AsFd) -> Result<u32> {
    // SAFETY: LOOP_CTL_GET_FREE ignores its argument and returns a number.
    let number = unsafe { ioctl(control, Returned::<LOOP_CTL_GET_FREE>) }?;
    u32::try_from(number).map_err(|_| Errno::INVAL)
}

/// Removes a loop device that is bound to nothing; `EBUSY` if it is bound or open.
pub(crate) fn loop_remove(control: impl AsFd, number: u32) -> Result<()> {
    let number = usize::try_from(number).map_err(|_| Errno::INVAL)?;
    // SAFETY: LOOP_CTL_REMOVE takes a number, not a pointer.
    unsafe { ioctl(control, IntegerSetter::<LOOP_CTL_REMOVE>::new_usize(number)) }
}

/// Binds a loop device to a file, in one step (Linux 5.8).
pub(crate) fn loop_configure(
    device: impl AsFd,
    file: impl AsFd,
    block_size: u32,
    info: LoopInfo,
) -> Result<()> {
    let fd = u32::try_from(file.as_fd().as_raw_fd()).map_err(|_| Errno::BADF)?;
    let config = LoopConfig { fd, block_size, info, reserved: [0; 8] };
    // SAFETY: LOOP_CONFIGURE reads one `struct loop_config`, which `LoopConfig` is, and keeps no pointer to it.
    unsafe { ioctl(device, Setter::<LOOP_CONFIGURE, _>::new(config)) }
}

/// What a loop device is bound to; `ENXIO` if to nothing.
pub(crate) fn loop_status(device: impl AsFd) -> Result<LoopInfo> {
    // SAFETY: LOOP_GET_STATUS64 fills one `struct loop_info64`, for which every bit pattern is a value.
    unsafe { ioctl(device, Getter::<LOOP_GET_STATUS64, LoopInfo>::new()) }
}

/// Lets go of the file, at once or when the last user closes the device.
pub(crate) fn loop_clear(device: impl AsFd) -> Result<()> {
    // SAFETY: LOOP_CLR_FD takes no argument.
    unsafe { ioctl(device, NoArg::<LOOP_CLR_FD>::new()) }
}

/// Takes over the file's new size.
pub(crate) fn loop_set_capacity(device: impl AsFd) -> Result<()> {
    // SAFETY: LOOP_SET_CAPACITY takes no argument.
    unsafe { ioctl(device, NoArg::<LOOP_SET_CAPACITY>::new()) }
}

/// The size of a block device in bytes.
pub(crate) fn device_size(device: impl AsFd) -> Result<u64> {
    // SAFETY: BLKGETSIZE64 writes one u64.
    unsafe { ioctl(device, Getter::<BLKGETSIZE64, u64>::new()) }
}

/// Whether a block device refuses writes.
pub(crate) fn device_read_only(device: impl AsFd) -> Result<bool> {
    // SAFETY: BLKROGET writes one int.
    unsafe { ioctl(device, Getter::<BLKROGET, i32>::new()) }.map(|value| value != 0)
}

/// Makes a block device refuse writes, whoever opened it and however.
pub(crate) fn refuse_writes(device: impl AsFd) -> Result<()> {
    // SAFETY: BLKROSET reads one int.
    unsafe { ioctl(device, Setter::<BLKROSET, i32>::new(1)) }
}

/// Flushes a filesystem and stops its writes; `EBUSY` if that was done before.
pub(crate) fn freeze(mount: impl AsFd) -> Result<()> {
    // SAFETY: FIFREEZE ignores its argument, whatever its number says.
    unsafe { ioctl(mount, NoArg::<FIFREEZE>::new()) }
}

/// Lets a frozen filesystem go on; `EINVAL` if it is not frozen.
pub(crate) fn thaw(mount: impl AsFd) -> Result<()> {
    // SAFETY: FITHAW ignores its argument.
    unsafe { ioctl(mount, NoArg::<FITHAW>::new()) }
}

/// How many extents one call tells of: few enough that it does not keep those waiting who write to the file.
const EXTENTS: u32 = 256;

/// `struct fiemap_extent`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Extent {
    pub(crate) logical: u64,
    pub(crate) physical: u64,
    pub(crate) length: u64,
    reserved64: [u64; 2],
    pub(crate) flags: u32,
    reserved: [u32; 3],
}

impl Extent {
    const EMPTY: Self =
        Self { logical: 0, physical: 0, length: 0, reserved64: [0; 2], flags: 0, reserved: [0; 3] };
}

/// `struct fiemap`, and what the kernel writes behind it.
#[repr(C)]
pub(crate) struct ExtentMap {
    start: u64,
    length: u64,
    flags: u32,
    mapped: u32,
    count: u32,
    reserved: u32,
    extents: [Extent; EXTENTS as usize],
}

const _: () = assert!(size_of::<Extent>() == 56, "the kernel's layout");
const _: () = assert!(size_of::<ExtentMap>() == 32 + 56 * EXTENTS as usize, "the kernel's layout");

impl ExtentMap {
    pub(crate) const EMPTY: Self = Self {
        start: 0,
        length: 0,
        flags: 0,
        mapped: 0,
        count: EXTENTS,
        reserved: 0,
        extents: [Extent::EMPTY; EXTENTS as usize],
    };

    /// The next extents of a file, from an offset on. None: there are no more.
    pub(crate) fn read(&mut self, file: impl AsFd, start: u64) -> Result<&[Extent]> {
        (self.start, self.length, self.flags, self.mapped) = (start, u64::MAX - start, 0, 0);
        self.count = EXTENTS;
        // SAFETY: FS_IOC_FIEMAP reads one `struct fiemap`, and writes that and at most `count` extents behind it, which is
        // exactly what `ExtentMap` has. Every bit pattern is a value of it, and the kernel keeps no pointer to it.
        unsafe { ioctl(file, Updater::<FS_IOC_FIEMAP, Self>::new(self)) }?;
        let mapped = usize::try_from(self.mapped).map_err(|_| Errno::INVAL)?;
        self.extents.get(..mapped).ok_or(Errno::INVAL)
    }
}

/// Sets and clears attributes of the one mount that `mount` is open on (Linux 5.12).
///
/// Unlike a remount through a path it works on a mount that is not attached yet, so a mount that is to be
/// read-only is never writable, not even for a moment.
pub(crate) fn set_mount_attributes(mount: impl AsFd, set: u64, clear: u64) -> Result<()> {
    let attributes = libc::mount_attr { attr_set: set, attr_clr: clear, propagation: 0, userns_fd: 0 };
    // SAFETY: the file descriptor is open for the length of the call, the path is an empty C string, and the
    // kernel reads exactly the given size of the structure and keeps nothing.
    let returned = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_fd().as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH,
            &raw const attributes,
            size_of::<libc::mount_attr>(),
        )
    };
    if returned == 0 {
        return Ok(());
    }
    Err(std::io::Error::last_os_error().raw_os_error().map_or(Errno::IO, Errno::from_raw_os_error))
}

/// Gives the calling thread, and the threads it starts from now on, a mount namespace of its own.
pub(crate) fn own_mount_namespace() -> Result<()> {
    // SAFETY: of what this call could take apart, only the mount namespace is asked for: no memory, no descriptors.
    let returned = unsafe { libc::unshare(libc::CLONE_NEWNS) };
    if returned == 0 {
        return Ok(());
    }
    Err(std::io::Error::last_os_error().raw_os_error().map_or(Errno::IO, Errno::from_raw_os_error))
}
