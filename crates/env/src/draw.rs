//! Numbers drawn one after the other, for generators of tasks.

use episode::random::Stream;

/// Draws one number after the other from a stream.
pub(crate) struct Draw {
    stream: Stream,
    at: u64,
}

impl Draw {
    pub(crate) fn new(stream: Stream) -> Draw {
        Draw { stream, at: 0 }
    }

    /// A whole number from 0 to below `n`; 0 when there is none.
    pub(crate) fn below(&mut self, n: u64) -> u64 {
        self.at += 1;
        self.stream.below(self.at - 1, n.max(1))
    }

    /// A number from 0 to below 1.
    pub(crate) fn uniform(&mut self) -> f64 {
        self.at += 1;
        self.stream.uniform(self.at - 1)
    }

    /// One of a list that is not empty.
    pub(crate) fn of<'a, T>(&mut self, list: &'a [T]) -> &'a T {
        &list[self.below(list.len() as u64) as usize]
    }

    /// `n` different ones of a list, or all of them where it has fewer.
    pub(crate) fn some<'a, T>(&mut self, list: &'a [T], n: usize) -> Vec<&'a T> {
        let mut left: Vec<&T> = list.iter().collect();
        (0..n.min(list.len())).map(|_| left.remove(self.below(left.len() as u64) as usize)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_drawn_together_differs_and_the_same_stream_draws_the_same() {
        let list: Vec<u32> = (0..20).collect();
        let draw = || Draw::new(Stream::new("test draw", &[3]));
        let some = draw().some(&list, 20).into_iter().copied().collect::<Vec<_>>();
        assert_ne!(some, list, "shuffled");
        assert_eq!(draw().some(&list, 20).into_iter().copied().collect::<Vec<_>>(), some);
        let mut sorted = some;
        sorted.sort_unstable();
        assert_eq!(sorted, list);
        assert_eq!(draw().some(&list, 30).len(), 20);
        assert_eq!(draw().below(0), 0);
    }
}
