//! Memory that this process has used and does not need any more, given back to the machine.
//!
//! A storm of a thousand attaches, or the lists of a start, take memory for seconds. The C library keeps it for later, in a pool for each thread,
//! and a process that needed it once keeps it for ever. One pool has fewer holes than many, grows in large steps where those of threads grow page
//! by page (a call of the kernel each), and what is free in it can be returned.

#![allow(unsafe_code, reason = "two calls of the C library that take and return plain numbers")]

/// From now on one pool is used. To be called before there are threads.
pub fn use_one_pool() {
    #[cfg(target_env = "gnu")]
    // SAFETY: takes two numbers, and changes nothing but how later allocations are laid out.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 1);
        libc::mallopt(libc::M_TOP_PAD, 1 << 20);
        // A fixed threshold: otherwise it grows with the largest block that was ever freed, and such blocks stay.
        libc::mallopt(libc::M_MMAP_THRESHOLD, 128 << 10);
        // What is free is given back by `give_back`, and not while somebody waits.
        libc::mallopt(libc::M_TRIM_THRESHOLD, 8 << 20);
    }
}

/// Returns what is free. Takes a moment for each megabyte that is used, so not on a thread that others wait for.
pub fn give_back() {
    #[cfg(target_env = "gnu")]
    // SAFETY: takes a number, and touches only memory that is free.
    unsafe {
        libc::malloc_trim(0);
    }
}
