//! Keys and values of sequences being sampled, in pages that sequences with a common start share.

use tensor::Buffer;
use tensor::attention::paged::{self, PAGE};

use crate::{Config, ModelError};

/// A page's place in the cache.
type PageId = u32;

/// One sequence's keys and values.
#[derive(Debug, Default)]
pub struct Sequence {
    pages: Vec<PageId>,
    len: usize,
}

impl Sequence {
    /// Number of positions held.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it holds nothing.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

/// The pages.
///
/// - Holds: a page that several sequences use is never written; a sequence that grows into a shared page gets its own
///   copy first.
#[derive(Debug)]
pub struct Cache {
    /// Each page: for every layer its keys, then its values.
    pages: Vec<Buffer>,
    users: Vec<u32>,
    free: Vec<PageId>,
    /// Floats of one layer's keys in a page.
    len: usize,
    n_layers: usize,
    limit: usize,
}

impl Cache {
    /// An empty cache of at most `limit` pages; memory is taken as pages are first used.
    pub fn new(config: &Config, limit: usize) -> Cache {
        let len = paged::page_len(&config.heads(0));
        Cache { pages: Vec::new(), users: Vec::new(), free: Vec::new(), len, n_layers: config.n_layers, limit }
    }

    /// Bytes of one page.
    pub fn page_bytes(&self) -> usize {
        self.n_layers * 2 * self.len * size_of::<f32>()
    }

    /// Pages there are at most.
    pub fn n_pages(&self) -> usize {
        self.limit
    }

    /// Pages that can still be had.
    pub fn free_pages(&self) -> usize {
        self.free.len() + self.limit - self.pages.len()
    }

    fn take(&mut self) -> Result<PageId, ModelError> {
        if let Some(page) = self.free.pop() {
            self.users[page as usize] = 1;
            return Ok(page);
        }
        if self.pages.len() == self.limit {
            return Err(ModelError::CacheFull { needed: 1, free: 0 });
        }
        self.pages.push(Buffer::zeroed(self.n_layers * 2 * self.len));
        self.users.push(1);
        Ok(self.pages.len() as PageId - 1)
    }

    /// Makes room for one more position and gives its place; the sequence is that much longer.
    ///
    /// - Errors: the cache is full; then the sequence is as it was.
    pub fn grow(&mut self, sequence: &mut Sequence) -> Result<usize, ModelError> {
        let slot = sequence.len % PAGE;
        if slot == 0 {
            let page = self.take()?;
            sequence.pages.push(page);
        } else {
            let last = *sequence.pages.last().expect("a started page is there");
            if self.users[last as usize] > 1 {
                let own = self.take()?;
                let copy = self.pages[last as usize].clone();
                self.pages[own as usize].copy_from_slice(&copy);
                self.users[last as usize] -= 1;
                *sequence.pages.last_mut().expect("a started page is there") = own;
            }
        }
        sequence.len += 1;
        Ok(sequence.len - 1)
    }

    /// A second sequence with the same past.
    pub fn fork(&mut self, sequence: &Sequence) -> Sequence {
        for page in &sequence.pages {
            self.users[*page as usize] += 1;
        }
        Sequence { pages: sequence.pages.clone(), len: sequence.len }
    }

    /// A second sequence with the same first `n` positions.
    pub fn fork_start(&mut self, sequence: &Sequence, n: usize) -> Sequence {
        let start = Sequence { pages: sequence.pages[..n.div_ceil(PAGE)].to_vec(), len: n };
        self.fork(&start)
    }

    /// Gives a sequence's pages back.
    pub fn release(&mut self, sequence: Sequence) {
        for page in sequence.pages {
            self.users[page as usize] -= 1;
            if self.users[page as usize] == 0 {
                self.free.push(page);
            }
        }
    }

    /// One layer's keys and values at a position, to write with [`paged::store`].
    pub(crate) fn slot_mut(&mut self, sequence: &Sequence, layer: usize, position: usize) -> (&mut [f32], &mut [f32]) {
        let page = &mut self.pages[sequence.pages[position / PAGE] as usize];
        page[layer * 2 * self.len..(layer + 1) * 2 * self.len].split_at_mut(self.len)
    }

    /// One layer's keys and values, page by page, as far as `n_keys` positions.
    pub(crate) fn layer<'a>(
        &'a self,
        sequence: &'a Sequence,
        layer: usize,
        n_keys: usize,
    ) -> impl Iterator<Item = (&'a [f32], &'a [f32])> + Clone {
        sequence.pages[..n_keys.div_ceil(PAGE)]
            .iter()
            .map(move |p| self.pages[*p as usize][layer * 2 * self.len..(layer + 1) * 2 * self.len].split_at(self.len))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arch;
    use serde_json::json;

    fn cache(limit: usize) -> Cache {
        let config = arch::from_hf(&json!({
            "model_type": "llama", "vocab_size": 8, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 2,
            "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 512,
        }))
        .unwrap();
        Cache::new(&config, limit)
    }

    #[test]
    fn a_fork_shares_pages_until_it_writes() {
        let mut cache = cache(8);
        let mut first = Sequence::default();
        for _ in 0..PAGE + 3 {
            cache.grow(&mut first).unwrap();
        }
        cache.slot_mut(&first, 0, PAGE + 2).0[2] = 5.0;
        let mut second = cache.fork(&first);
        assert_eq!(cache.free_pages(), 6);
        let position = cache.grow(&mut second).unwrap();
        assert_eq!((position, cache.free_pages()), (PAGE + 3, 5));
        assert_eq!(cache.slot_mut(&second, 0, PAGE + 2).0[2], 5.0);
        cache.slot_mut(&second, 0, PAGE + 3).0[2] = 7.0;
        assert_eq!(cache.slot_mut(&first, 0, PAGE + 2).0[2], 5.0);
        cache.release(first);
        cache.release(second);
        assert_eq!(cache.free_pages(), 8);
    }

    #[test]
    fn a_full_cache_says_so_and_leaves_the_sequence() {
        let mut cache = cache(1);
        let mut sequence = Sequence::default();
        for _ in 0..PAGE {
            cache.grow(&mut sequence).unwrap();
        }
        assert!(matches!(cache.grow(&mut sequence), Err(ModelError::CacheFull { .. })));
        assert_eq!(sequence.len(), PAGE);
    }
}
