//! Where code that waits meets code that does not.

use std::future::Future;
use std::sync::mpsc;
use std::thread::JoinHandle;

use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;
use tokio::task::AbortHandle;

use super::WireError;

/// A thread that runs a client's protocol, so that its pings are answered and its deadlines kept between calls too, and so
/// that the client can be used and dropped anywhere, within another runtime as well.
#[derive(Debug)]
pub(crate) struct Seam {
    handle: Handle,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Seam {
    /// Starts the thread.
    ///
    /// - Errors: `Machine` when the system gives no thread.
    pub(crate) fn start(name: &str) -> Result<Seam, WireError> {
        let refuse = |e: std::io::Error| WireError::Machine { action: "start a thread", reason: e.to_string() };
        let runtime = Builder::new_current_thread().enable_io().enable_time().build().map_err(refuse)?;
        let handle = runtime.handle().clone();
        let (stop, stopped) = oneshot::channel();
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn(move || {
            // Ends when the sender is dropped; what still runs is dropped with the runtime.
            drop(runtime.block_on(stopped));
        });
        Ok(Seam { handle, stop: Some(stop), thread: Some(thread.map_err(refuse)?) })
    }

    /// Runs something beside the caller.
    pub(crate) fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) -> AbortHandle {
        self.handle.spawn(work).abort_handle()
    }

    /// Runs something to its end.
    ///
    /// - Errors: `Machine` when it was torn down before its end.
    pub(crate) fn run<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> Result<T, WireError> {
        let (tell, heard) = mpsc::sync_channel(1);
        self.handle.spawn(async move { drop(tell.send(work.await)) });
        let gone = |_| WireError::Machine { action: "finish a request", reason: "its thread ended".to_owned() };
        heard.recv().map_err(gone)
    }
}

impl Drop for Seam {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A thread that panicked has nothing left to tidy up.
            drop(thread.join());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn work_runs_beside_the_caller_and_ends_with_the_seam() {
        let seam = Seam::start("test").unwrap();
        let (tell, heard) = mpsc::channel();
        let other = tell.clone();
        seam.spawn(async move { other.send(1).unwrap() });
        assert_eq!(heard.recv_timeout(Duration::from_secs(10)), Ok(1));
        assert_eq!(seam.run(async { 2 }), Ok(2));
        struct Tells(mpsc::Sender<i32>);
        impl Drop for Tells {
            fn drop(&mut self) {
                self.0.send(3).unwrap();
            }
        }
        let tells = Tells(tell);
        seam.spawn(async move {
            let _tells = tells;
            std::future::pending::<()>().await;
        });
        drop(seam);
        assert_eq!(heard.recv_timeout(Duration::from_secs(10)), Ok(3), "what still ran is dropped");
    }

    #[test]
    fn a_seam_can_be_used_and_dropped_within_another_runtime() {
        let outer = Builder::new_current_thread().build().unwrap();
        let got = outer.block_on(async {
            let seam = Seam::start("test").unwrap();
            seam.run(async { 7 })
        });
        assert_eq!(got, Ok(7));
    }
}
