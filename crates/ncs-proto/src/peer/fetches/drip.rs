//! The least rate of the fetch that is served first.
//!
//! A source that sends a block now and then makes progress, and would never end. Fetches share the
//! path, and sources serve them one after the other, so only the one that is served first can be
//! expected to progress. Its bytes are counted over windows of time.

use std::time::Duration;

use crate::peer::ids::FetchId;
use crate::time::Instant;

/// The fetch that is served first, and its bytes in the present window.
#[derive(Debug)]
pub(super) struct Drip {
    window: Duration,
    /// The least number of bytes in a window.
    bytes_min: u64,
    watched: Option<Watched>,
    /// Since when no server is connected: time that does not count.
    dark_since: Option<Instant>,
}

#[derive(Debug)]
struct Watched {
    fetch: FetchId,
    until: Instant,
    bytes: u64,
}

impl Drip {
    /// `rate_min` is in bytes a second; 0 accepts any rate.
    pub(super) fn new(rate_min: u64, window: Duration) -> Self {
        Self {
            window,
            bytes_min: rate_min.saturating_mul(window.as_secs()),
            watched: None,
            dark_since: None,
        }
    }

    /// Says whether no server is connected.
    pub(super) fn set_dark(&mut self, now: Instant, is_dark: bool) {
        if is_dark {
            self.dark_since.get_or_insert(now);
        } else if let Some(since) = self.dark_since.take()
            && let Some(watched) = &mut self.watched
        {
            watched.until += now.saturating_duration_since(since);
        }
    }

    /// Says which fetch is served first now, if any. Repeating it is harmless.
    pub(super) fn watch(&mut self, now: Instant, fetch: Option<FetchId>) {
        if self.dark_since.is_some() {
            return;
        }
        if self.watched.as_ref().map(|watched| watched.fetch) != fetch {
            self.watched = fetch.map(|fetch| Watched {
                fetch,
                until: now + self.window,
                bytes: 0,
            });
        }
        let window = self.window;
        if let Some(watched) = self.watched.as_mut().filter(|watched| watched.until <= now) {
            // No bytes at all is a stall, which has a timeout of its own.
            if watched.bytes == 0 || watched.bytes >= self.bytes_min {
                (watched.until, watched.bytes) = (now + window, 0);
            }
        }
    }

    /// A block has raised the rank of a generation.
    pub(super) fn brought(&mut self, fetch: FetchId, bytes: usize) {
        if let Some(watched) = self
            .watched
            .as_mut()
            .filter(|watched| watched.fetch == fetch)
        {
            watched.bytes += bytes as u64;
        }
    }

    /// Whether this fetch was served first for a window with too few bytes.
    pub(super) fn is_over(&self, now: Instant, fetch: FetchId) -> bool {
        let watched = self
            .watched
            .as_ref()
            .filter(|watched| watched.fetch == fetch && self.dark_since.is_none());
        watched.is_some_and(|watched| watched.until <= now && watched.bytes < self.bytes_min)
    }

    /// When a window ends.
    pub(super) fn due(&self) -> Option<Instant> {
        self.watched
            .as_ref()
            .filter(|_| self.bytes_min > 0 && self.dark_since.is_none())
            .map(|watched| watched.until)
    }
}
