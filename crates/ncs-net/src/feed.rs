//! Server-sent events of a page: its state, once a second, to those who look.
//!
//! One loop makes the state for all readers. Without readers it waits without a timer and makes
//! nothing. A reader gets the latest state when its connection has room, so a slow one misses
//! states and costs no memory. There are [`READERS_MAX`] places, so that scrapers of the same
//! listener find a place, too. A stream ends by itself before its connection's life does, because
//! browsers log a cut one as an error; they come again after a second.

use std::convert::Infallible;
use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::Response;
use futures_util::stream;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::Instant;

use crate::page;

/// Event streams at the same time.
pub const READERS_MAX: usize = 16;

/// The event streams of a page.
#[derive(Debug)]
pub struct Feed {
    latest: watch::Sender<Vec<Part>>,
    wanted: Notify,
    places: Arc<Semaphore>,
    every: Duration,
    life: Duration,
}

/// A part of the state, which is sent when its revision has changed.
#[derive(Debug, Clone)]
pub struct Part {
    /// The type of the event.
    pub name: &'static str,
    /// Another one for another content.
    pub revision: u64,
    /// JSON in one line.
    pub json: Bytes,
}

impl Feed {
    /// Without readers.
    pub fn new() -> Arc<Self> {
        Self::with(EVERY, LIFE)
    }

    fn with(every: Duration, life: Duration) -> Arc<Self> {
        Arc::new(Self {
            latest: watch::Sender::default(),
            wanted: Notify::new(),
            places: Arc::new(Semaphore::new(READERS_MAX)),
            every,
            life,
        })
    }

    /// Makes the state for as long as there are readers. Does not end.
    pub async fn run(&self, make: impl Fn() -> Vec<Part>) {
        loop {
            self.wanted.notified().await;
            while self.latest.receiver_count() > 0 {
                self.latest.send_replace(make());
                tokio::select! {
                    () = tokio::time::sleep(self.every) => {}
                    // A new reader need not wait.
                    () = self.wanted.notified() => {}
                    () = self.latest.closed() => {}
                }
            }
            self.latest.send_replace(Vec::new());
        }
    }

    /// The answer to a new reader: a stream of events, or 503 if there are too many.
    pub fn open(&self) -> Response {
        let Ok(place) = Arc::clone(&self.places).try_acquire_owned() else {
            let text = format!("{READERS_MAX} pages are open already: close one, or wait");
            return page::sentence(StatusCode::SERVICE_UNAVAILABLE, &text);
        };
        let reader = Reader {
            updates: self.latest.subscribe(),
            seen: Vec::new(),
            is_greeted: false,
            end: Instant::now() + self.life,
            places: Arc::clone(&self.places),
            _place: place,
        };
        self.wanted.notify_one();
        let body = Body::from_stream(stream::unfold(reader, async |mut reader| {
            Some((Ok::<_, Infallible>(reader.next().await?), reader))
        }));
        let mut response = page::answer(StatusCode::OK, "text/event-stream", body);
        // The next stream has the whole life of another connection.
        response
            .headers_mut()
            .insert(header::CONNECTION, HeaderValue::from_static("close"));
        response
    }

    /// Ends the streams, and refuses more.
    pub fn close(&self) {
        self.places.close();
        self.latest.send_replace(Vec::new());
    }
}

struct Reader {
    updates: watch::Receiver<Vec<Part>>,
    /// Revisions of the parts that were sent.
    seen: Vec<(&'static str, u64)>,
    is_greeted: bool,
    end: Instant,
    places: Arc<Semaphore>,
    _place: OwnedSemaphorePermit,
}

impl Reader {
    async fn next(&mut self) -> Option<Bytes> {
        if !self.is_greeted {
            self.is_greeted = true;
            return Some(Bytes::from_static(b"retry: 1000\n\n"));
        }
        loop {
            tokio::select! {
                changed = self.updates.changed() => changed.ok()?,
                () = tokio::time::sleep_until(self.end) => return None,
            }
            if self.places.is_closed() {
                return None;
            }
            let text = self.unseen();
            if !text.is_empty() {
                return Some(text.into());
            }
        }
    }

    fn unseen(&mut self) -> String {
        let (mut text, mut seen) = (String::new(), Vec::new());
        for part in &*self.updates.borrow_and_update() {
            let known = (part.name, part.revision);
            if !self.seen.contains(&known) {
                let json = String::from_utf8_lossy(&part.json);
                write!(text, "event: {}\ndata: {json}\n\n", part.name)
                    .expect("a string takes everything");
            }
            seen.push(known);
        }
        if !seen.is_empty() {
            self.seen = seen;
        }
        text
    }
}

const EVERY: Duration = Duration::from_secs(1);
/// Below the life of a connection.
const LIFE: Duration = Duration::from_secs(45);

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use futures_util::StreamExt;

    use super::*;

    fn part(name: &'static str, revision: u64) -> Part {
        Part {
            name,
            revision,
            json: format!("{{\"revision\":{revision}}}").into(),
        }
    }

    /// The next part of the stream's text.
    async fn next(body: &mut axum::body::BodyDataStream) -> Option<String> {
        let bytes = body.next().await?.unwrap();
        Some(String::from_utf8(bytes.to_vec()).unwrap())
    }

    #[tokio::test]
    async fn states_are_made_for_readers_only() {
        let (every, life) = (Duration::from_millis(20), Duration::from_millis(400));
        let (feed, made) = (Feed::with(every, life), Arc::new(AtomicU64::new(0)));
        let (running, count) = (Arc::clone(&feed), Arc::clone(&made));
        let task = tokio::spawn(async move {
            let make = || {
                let number = count.fetch_add(1, Ordering::Relaxed) + 1;
                vec![part("state", number), part("events", 7)]
            };
            running.run(make).await;
        });
        tokio::time::sleep(10 * every).await;
        assert_eq!(made.load(Ordering::Relaxed), 0, "nobody looks");

        let mut body = feed.open().into_body().into_data_stream();
        assert_eq!(next(&mut body).await.unwrap(), "retry: 1000\n\n");
        let first = next(&mut body).await.unwrap();
        assert_eq!(
            first,
            "event: state\ndata: {\"revision\":1}\n\nevent: events\ndata: {\"revision\":7}\n\n"
        );
        let second = next(&mut body).await.unwrap();
        assert_eq!(second, "event: state\ndata: {\"revision\":2}\n\n");

        // A reader that was slow gets the latest state, and no other.
        tokio::time::sleep(5 * every).await;
        let made_meanwhile = made.load(Ordering::Relaxed);
        assert!(made_meanwhile > 3, "{made_meanwhile}");
        let third = next(&mut body).await.unwrap();
        let expected = format!("event: state\ndata: {{\"revision\":{made_meanwhile}}}\n\n");
        assert_eq!(third, expected);
        let end = async { while next(&mut body).await.is_some() {} };
        let ended = tokio::time::timeout(20 * life, end).await;
        assert!(ended.is_ok(), "it ends by itself");
        drop(body);

        tokio::time::sleep(5 * every).await;
        let at_end = made.load(Ordering::Relaxed);
        tokio::time::sleep(10 * every).await;
        assert_eq!(made.load(Ordering::Relaxed), at_end, "nobody looks again");
        assert!(feed.latest.borrow().is_empty(), "nothing is kept");
        task.abort();
    }

    #[tokio::test]
    async fn the_number_of_readers_is_bounded() {
        let feed = Feed::new();
        let mut open: Vec<_> = (0..READERS_MAX).map(|_| feed.open()).collect();
        assert!(open.iter().all(|answer| answer.status() == StatusCode::OK));
        assert_eq!(feed.open().status(), StatusCode::SERVICE_UNAVAILABLE);
        open.pop();
        assert_eq!(feed.open().status(), StatusCode::OK);

        let mut body = open.pop().unwrap().into_body().into_data_stream();
        feed.close();
        assert_eq!(next(&mut body).await.unwrap(), "retry: 1000\n\n");
        assert_eq!(next(&mut body).await, None, "streams end");
        assert_eq!(feed.open().status(), StatusCode::SERVICE_UNAVAILABLE);
    }
}
