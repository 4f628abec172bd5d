//! Memory of all grammars of one vocabulary, however many answers hold them.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Bytes of masks that all lexers of a vocabulary keep together.
pub const MAX_MASK_BYTES: usize = 256 << 20;

/// Counts the masks that are kept and the states that lexers have made: of grammars that a cache
/// keeps, and of those that only answers hold. Any thread.
pub struct Memory {
    max_mask_bytes: usize,
    mask_bytes: AtomicUsize,
    lexer_bytes: AtomicUsize,
}

impl Memory {
    pub fn new(max_mask_bytes: usize) -> Memory {
        Memory { max_mask_bytes, mask_bytes: AtomicUsize::new(0), lexer_bytes: AtomicUsize::new(0) }
    }

    pub fn mask_bytes(&self) -> usize {
        self.mask_bytes.load(Relaxed)
    }

    pub fn lexer_bytes(&self) -> usize {
        self.lexer_bytes.load(Relaxed)
    }

    /// Whether there is room for a mask of so many bytes; then they are counted.
    pub fn take_mask(&self, num_bytes: usize) -> bool {
        let add = |taken: usize| {
            let sum = taken.checked_add(num_bytes)?;
            (sum <= self.max_mask_bytes).then_some(sum)
        };
        self.mask_bytes.fetch_update(Relaxed, Relaxed, add).is_ok()
    }

    pub fn give_masks_back(&self, num_bytes: usize) {
        self.mask_bytes.fetch_sub(num_bytes, Relaxed);
    }

    /// The states of one lexer have `now` instead of `before` bytes.
    pub fn change_lexer(&self, before: usize, now: usize) {
        self.lexer_bytes.fetch_add(now.wrapping_sub(before), Relaxed);
    }
}
