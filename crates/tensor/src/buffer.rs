//! A zeroed, 64-byte aligned block of floats, on huge pages when it is large.

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

/// From this size on, huge pages are asked for: page faults and address translation cost several per cent otherwise.
const LARGE: usize = 4 << 20;
const HUGE_PAGE: usize = 2 << 20;

/// A block of floats.
///
/// - Holds: starts zeroed; its start is aligned to 64 bytes, so that a panel's rows load whole vectors.
pub struct Buffer {
    start: NonNull<f32>,
    len: usize,
    layout: Layout,
}

// SAFETY: the buffer owns its memory and has no interior mutability.
unsafe impl Send for Buffer {}
// SAFETY: as above.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// A block of `len` zeros.
    pub fn zeroed(len: usize) -> Buffer {
        let size = len.max(16) * size_of::<f32>();
        let align = if size >= LARGE { HUGE_PAGE } else { 64 };
        let layout = Layout::from_size_align(size.next_multiple_of(align), align).expect("a length that fits memory");
        // SAFETY: the layout's size is never zero.
        let memory = unsafe { alloc(layout) };
        let Some(start) = NonNull::new(memory.cast::<f32>()) else { handle_alloc_error(layout) };
        // Before the first touch, else small pages are already there.
        advise(memory, layout.size());
        // SAFETY: the allocation holds `layout.size()` bytes.
        unsafe { memory.write_bytes(0, layout.size()) };
        Buffer { start, len, layout }
    }

    /// A block holding a copy of `values`.
    pub fn from_slice(values: &[f32]) -> Buffer {
        let mut buffer = Buffer::zeroed(values.len());
        buffer.copy_from_slice(values);
        buffer
    }

    /// Makes room for at least `len` floats; what was there is lost when it grows.
    pub fn reserve(&mut self, len: usize) -> &mut [f32] {
        if self.len < len {
            *self = Buffer::zeroed(len.next_multiple_of(1024));
        }
        &mut self[..len]
    }
}

#[cfg(target_os = "linux")]
fn advise(memory: *mut u8, size: usize) {
    if size >= LARGE {
        // SAFETY: the range is our own fresh allocation, aligned to a page; a refusal only costs speed.
        let _ = unsafe { rustix::mm::madvise(memory.cast(), size, rustix::mm::Advice::LinuxHugepage) };
    }
}

#[cfg(not(target_os = "linux"))]
fn advise(_memory: *mut u8, _size: usize) {}

impl Default for Buffer {
    fn default() -> Self {
        Buffer::zeroed(0)
    }
}

impl Clone for Buffer {
    fn clone(&self) -> Self {
        Buffer::from_slice(self)
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: allocated in `zeroed` with this very layout.
        unsafe { dealloc(self.start.as_ptr().cast(), self.layout) }
    }
}

impl Deref for Buffer {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        // SAFETY: `len` initialised floats that live as long as `self`.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [f32] {
        // SAFETY: as for `deref`, and borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl std::fmt::Debug for Buffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Buffer({})", self.len)
    }
}

/// A mutable slice that several threads write to at once, each its own places.
#[derive(Clone, Copy)]
pub struct Shared<'a, T = f32> {
    start: *mut T,
    len: usize,
    life: std::marker::PhantomData<&'a mut [T]>,
}

// SAFETY: access is only through `slice`, whose contract forbids overlap.
unsafe impl<T: Send> Send for Shared<'_, T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for Shared<'_, T> {}

impl<'a, T> Shared<'a, T> {
    /// Shares a slice.
    pub fn new(slice: &'a mut [T]) -> Self {
        Shared { start: slice.as_mut_ptr(), len: slice.len(), life: std::marker::PhantomData }
    }

    /// The elements `start..start + len`.
    ///
    /// # Safety
    /// No two live slices, on any thread, may overlap.
    #[allow(clippy::mut_from_ref, reason = "disjointness is the caller's promise")]
    pub unsafe fn slice(&self, start: usize, len: usize) -> &'a mut [T] {
        assert!(start + len <= self.len, "range {start}..{} past {}", start + len, self.len);
        // SAFETY: inside the slice, and by the caller's promise not aliased.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(start), len) }
    }
}
