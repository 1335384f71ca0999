//! The read buffer of the gateway's thread, which all connections share.

use std::cell::RefCell;

/// Size of one read.
pub const READ_BYTES: usize = 64 * 1024;

thread_local! {
    static SCRATCH: RefCell<Vec<u8>> = RefCell::new(vec![0; READ_BYTES]);
}

/// Runs `read` on this thread's buffer. `read` must not call this function again.
pub fn with_scratch<T>(read: impl FnOnce(&mut [u8]) -> T) -> T {
    SCRATCH.with_borrow_mut(|scratch| read(scratch))
}
