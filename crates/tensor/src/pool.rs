//! One small pool of threads. Units of work are claimed one by one; the caller claims too and can finish them all, so a
//! worker that never gets a core costs nothing, and workers sleep when there is no work.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError, TryLockError};
use std::thread::JoinHandle;

use crate::cpu::CpuError;

/// How often a worker looks for work before it sleeps: a few tens of microseconds, longer than the gap between two
/// kernels of one forward pass and far shorter than a time slice.
const SPINS: u32 = 4_000;

/// A pool of threads that splits outputs between them.
pub struct Pool {
    shared: Arc<Shared>,
    /// Held by the caller of [`Pool::run`]; a second caller works alone instead of waiting.
    turn: Mutex<()>,
    workers: Vec<JoinHandle<()>>,
}

type Unit<'a> = &'a (dyn Fn(usize) + Sync);

struct Shared {
    /// Units not yet claimed. Only a claim that lowers this by one may read `job`.
    unclaimed: AtomicUsize,
    /// Units finished.
    finished: AtomicUsize,
    /// The current unit function with its lifetime removed; see the safety note in [`Pool::run`].
    job: Mutex<Option<Unit<'static>>>,
    stop: AtomicBool,
    sleepers: AtomicUsize,
    door: Mutex<()>,
    bell: Condvar,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Pool({})", self.n_threads())
    }
}

impl Pool {
    /// A pool of `n_threads`, the caller's included.
    pub fn new(n_threads: usize) -> Result<Pool, CpuError> {
        if n_threads == 0 || n_threads > 1024 {
            return Err(CpuError::Threads(n_threads));
        }
        let shared = Arc::new(Shared {
            unclaimed: AtomicUsize::new(0),
            finished: AtomicUsize::new(0),
            job: Mutex::new(None),
            stop: AtomicBool::new(false),
            sleepers: AtomicUsize::new(0),
            door: Mutex::new(()),
            bell: Condvar::new(),
            panic: Mutex::new(None),
        });
        let mut pool = Pool { shared, turn: Mutex::new(()), workers: Vec::new() };
        for index in 1..n_threads {
            let shared = Arc::clone(&pool.shared);
            let worker = std::thread::Builder::new().name(format!("tensor-{index}")).spawn(move || shared.work());
            pool.workers.push(worker.map_err(|e| CpuError::Spawn(e.to_string()))?);
        }
        Ok(pool)
    }

    /// Number of threads, the caller's included.
    pub fn n_threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Calls `f` once for each unit below `n_units`, on all threads, and returns when all are done.
    ///
    /// - Holds: a panic in a unit is raised again here after the others ended. A call from inside a unit, or while
    ///   another thread is inside, runs its units on the calling thread.
    pub fn run(&self, n_units: usize, f: Unit<'_>) {
        let turn = match self.turn.try_lock() {
            Ok(turn) => Some(turn),
            Err(TryLockError::Poisoned(turn)) => Some(turn.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        };
        if turn.is_none() || n_units < 2 || self.workers.is_empty() {
            (0..n_units).for_each(f);
            return;
        }
        let shared = &*self.shared;
        // SAFETY: only the lifetime changes. A worker calls the function only for a unit it has claimed, and this
        // function returns only after `finished` counted every unit, so no call outlives the borrow.
        let job = unsafe { std::mem::transmute::<Unit<'_>, Unit<'static>>(f) };
        *lock(&shared.job) = Some(job);
        shared.finished.store(0, Ordering::Relaxed);
        // Sequentially consistent with the sleeper's counter: either a worker going to sleep sees this work, or we see it
        // asleep and ring.
        shared.unclaimed.store(n_units, Ordering::SeqCst);
        if shared.sleepers.load(Ordering::SeqCst) > 0 {
            drop(lock(&shared.door));
            shared.bell.notify_all();
        }
        while shared.claim_one(Some(job)) {}
        let mut spins = 0;
        while shared.finished.load(Ordering::Acquire) < n_units {
            spins += 1;
            if spins < SPINS { std::hint::spin_loop() } else { std::thread::yield_now() }
        }
        *lock(&shared.job) = None;
        if let Some(panic) = lock(&shared.panic).take() {
            drop(turn);
            resume_unwind(panic);
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        drop(lock(&self.shared.door));
        self.shared.bell.notify_all();
        for worker in self.workers.drain(..) {
            // A worker never panics outside a unit, and those are caught.
            let _ = worker.join();
        }
    }
}

impl Shared {
    /// Claims and runs one unit; false when none is left. Units count down, so the index needs no total.
    fn claim_one(&self, job: Option<Unit<'static>>) -> bool {
        let mut left = self.unclaimed.load(Ordering::SeqCst);
        loop {
            if left == 0 {
                return false;
            }
            match self.unclaimed.compare_exchange_weak(left, left - 1, Ordering::SeqCst, Ordering::SeqCst) {
                Ok(_) => break,
                Err(now) => left = now,
            }
        }
        let job = job.or_else(|| *lock(&self.job)).expect("a claimed unit keeps its job in place");
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| job(left - 1))) {
            lock(&self.panic).get_or_insert(panic);
        }
        self.finished.fetch_add(1, Ordering::Release);
        true
    }

    fn work(&self) {
        let mut spins = 0;
        while !self.stop.load(Ordering::Relaxed) {
            if self.claim_one(None) {
                spins = 0;
            } else if spins < SPINS {
                spins += 1;
                std::hint::spin_loop();
            } else {
                self.sleep();
                spins = 0;
            }
        }
    }

    fn sleep(&self) {
        let mut door = lock(&self.door);
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        while self.unclaimed.load(Ordering::SeqCst) == 0 && !self.stop.load(Ordering::SeqCst) {
            door = self.bell.wait(door).unwrap_or_else(PoisonError::into_inner);
        }
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU64;

    #[test]
    fn every_unit_runs_once_over_many_jobs() {
        let pool = Pool::new(4).unwrap();
        for n in 0..500 {
            let sum = AtomicU64::new(0);
            pool.run(n, &|i| {
                sum.fetch_add(i as u64 + 1, Ordering::Relaxed);
            });
            assert_eq!(sum.into_inner(), (n * (n + 1) / 2) as u64);
        }
    }

    #[test]
    fn sleeping_workers_wake_for_new_work() {
        let pool = Pool::new(2).unwrap();
        for _ in 0..5 {
            std::thread::sleep(std::time::Duration::from_millis(5));
            let sum = AtomicU64::new(0);
            pool.run(64, &|_| {
                sum.fetch_add(1, Ordering::Relaxed);
            });
            assert_eq!(sum.into_inner(), 64);
        }
    }

    #[test]
    fn a_call_inside_a_unit_and_a_second_caller_finish_alone() {
        let pool = Pool::new(2).unwrap();
        let sum = AtomicU64::new(0);
        std::thread::scope(|s| {
            for _ in 0..3 {
                s.spawn(|| {
                    pool.run(8, &|_| {
                        pool.run(4, &|_| {
                            sum.fetch_add(1, Ordering::Relaxed);
                        });
                    });
                });
            }
        });
        assert_eq!(sum.into_inner(), 3 * 8 * 4);
    }

    #[test]
    fn a_panic_in_a_unit_reaches_the_caller_and_the_pool_lives_on() {
        let pool = Pool::new(2).unwrap();
        let caught = catch_unwind(AssertUnwindSafe(|| pool.run(16, &|i| assert!(i != 5, "unit five"))));
        assert!(caught.is_err());
        let sum = AtomicU64::new(0);
        pool.run(16, &|_| {
            sum.fetch_add(1, Ordering::Relaxed);
        });
        assert_eq!(sum.into_inner(), 16);
    }

    #[test]
    fn thread_counts_out_of_range_are_refused() {
        assert_eq!(Pool::new(0).unwrap_err(), CpuError::Threads(0));
    }
}
