//! Progress on standard error, seen by people only.

use std::sync::Mutex;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use remote::{Event, Progress};

/// A bar that counts to `total` (a spinner where that is unknown) and shows `message`; hidden with `--json`, or where
/// standard error is no terminal.
pub(crate) fn bar(json: bool, total: Option<u64>, unit: &str) -> ProgressBar {
    let bar = match total {
        Some(total) => ProgressBar::new(total),
        None => ProgressBar::new_spinner(),
    };
    let text = match (unit, total.is_some()) {
        ("bytes", true) => {
            "{msg} [{bar:30}] {decimal_bytes}/{decimal_total_bytes} {decimal_bytes_per_sec} left {eta}".to_owned()
        }
        ("bytes", false) => "{msg} {spinner} {decimal_bytes} {decimal_bytes_per_sec}".to_owned(),
        (unit, true) => format!("{{msg}} [{{bar:30}}] {{human_pos}}/{{human_len}} {unit} left {{eta}}"),
        (unit, false) => format!("{{msg}} {{spinner}} {{human_pos}} {unit}"),
    };
    let style = ProgressStyle::with_template(&text).unwrap_or_else(|_| ProgressStyle::default_bar());
    bar.set_style(style.progress_chars("█▌ "));
    bar.set_draw_target(if json { ProgressDrawTarget::hidden() } else { ProgressDrawTarget::stderr() });
    bar
}

/// A bar that counts to `total` and shows the whole message behind it.
pub(crate) fn plain(json: bool, total: u64) -> ProgressBar {
    let bar = bar(json, Some(total), "");
    if let Ok(style) = ProgressStyle::with_template("[{bar:20}] {wide_msg}") {
        bar.set_style(style.progress_chars("█▌ "));
    }
    bar
}

/// A model store's work as a bar of bytes.
pub(crate) struct Transfer {
    json: bool,
    shown: Mutex<Shown>,
}

#[derive(Default)]
struct Shown {
    bar: Option<ProgressBar>,
    of: String,
}

impl Transfer {
    /// A bar that appears with the first byte.
    pub(crate) fn new(json: bool) -> Self {
        Transfer { json, shown: Mutex::default() }
    }
}

impl Progress for Transfer {
    fn event(&self, event: &Event<'_>) {
        let mut shown = self.shown.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        match event {
            Event::Bytes { phase, file, done_bytes, total_bytes } => {
                let of = format!("{phase} {}", view::visible(file));
                if shown.of != of {
                    if let Some(old) = shown.bar.take() {
                        old.finish_and_clear();
                    }
                    let bar = bar(self.json, *total_bytes, "bytes");
                    bar.set_message(of.clone());
                    (shown.bar, shown.of) = (Some(bar), of);
                }
                if let Some(bar) = &shown.bar {
                    // A package's size is a rounded guess.
                    if total_bytes.is_some_and(|t| *done_bytes > t) {
                        bar.set_length(*done_bytes);
                    }
                    bar.set_position(*done_bytes);
                }
            }
            Event::Waiting { model } => {
                self.note(&mut shown, format!("waiting for another process that works on `{model}`"))
            }
            Event::Retrying { file, reason, wait } => {
                let text =
                    format!("{}: {}; again in {} s", view::visible(file), view::visible(reason), wait.as_secs_f32());
                self.note(&mut shown, text);
            }
        }
    }
}

impl Transfer {
    fn note(&self, shown: &mut Shown, text: String) {
        let bar = shown.bar.get_or_insert_with(|| {
            let bar = bar(self.json, None, "bytes");
            bar.enable_steady_tick(Duration::from_millis(200));
            bar
        });
        bar.println(&text);
        bar.set_message(text);
        shown.of.clear();
    }
}

impl Drop for Transfer {
    fn drop(&mut self) {
        let shown = self.shown.get_mut().unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Some(bar) = shown.bar.take() {
            bar.finish_and_clear();
        }
    }
}
