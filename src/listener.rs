//! An HTTP listener whose places cannot be held by clients that ask for nothing.
//!
//! One task accepts, and one more runs for each connection. A request's head must come within `head_timeout`; that also ends a
//! connection on which no other request follows. There are `connections_max` places. When all are taken, a new connection gets
//! the place of the one that has waited longest for the head of a request: a request that is half sent does not keep out one
//! that is whole. A connection whose request is being answered keeps its place; when all are such, new ones wait in the
//! system's queue.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::future::{Future, pending};
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody};
use axum::http::{Request, Response};
use axum::serve::Listener;
use hyper::body::{Frame, Incoming, SizeHint};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::JoinSet;

/// What clients may take.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// Connections at a time.
    pub(crate) connections_max: usize,
    /// How long the head of a request may take, and a connection may be idle.
    pub(crate) head_timeout: Duration,
    /// How long a connection may live. Scrapers come back by themselves; a player reads one answer for as long as it plays.
    pub(crate) life: Option<Duration>,
}

/// Answers requests until `stop` completes, and then those that are under way. Dropping it cuts all connections.
///
/// `answer` is given the request and the address of this machine that it came to.
pub(crate) async fn serve<F, A>(mut listener: TcpListener, limits: Limits, answer: F, stop: impl Future<Output = ()>)
where
    F: Fn(Request<Incoming>, IpAddr) -> A + Clone + Send + 'static,
    A: Future<Output = Response<Body>> + Send + 'static,
{
    let crowd = Arc::new(Crowd::new(limits.connections_max));
    let (stopping, stopped) = watch::channel(());
    let mut connections = JoinSet::new();
    tokio::pin!(stop);
    loop {
        tokio::select! {
            (stream, _) = Listener::accept(&mut listener) => {
                let visit = tokio::select! {
                    visit = crowd.enter() => visit,
                    () = &mut stop => break,
                };
                connections.spawn(attend(stream, visit, limits, answer.clone(), stopped.clone()));
            }
            Some(_) = connections.join_next() => {}
            () = &mut stop => break,
        }
    }
    drop((listener, stopping));
    while connections.join_next().await.is_some() {}
}

/// Answers the requests of one connection.
async fn attend<F, A>(stream: TcpStream, visit: Visit, limits: Limits, answer: F, mut stopped: watch::Receiver<()>)
where
    F: Fn(Request<Incoming>, IpAddr) -> A,
    A: Future<Output = Response<Body>>,
{
    let Ok(local) = stream.local_addr() else { return };
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "no TCP_NODELAY");
    }
    let visit = Arc::new(visit);
    let of_visit = Arc::clone(&visit);
    let service = service_fn(move |request| {
        let (working, answered) = (Working::new(&of_visit), answer(request, local.ip().to_canonical()));
        async move { Ok::<_, Infallible>(answered.await.map(|body| Held { body, _working: working })) }
    });
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(limits.head_timeout);
    let connection = http.serve_connection(TokioIo::new(stream), service);
    tokio::pin!(connection);
    let end = async {
        match limits.life {
            Some(life) => tokio::time::sleep(life).await,
            None => pending().await,
        }
    };
    tokio::pin!(end);
    let mut is_ending = false;
    loop {
        tokio::select! {
            result = &mut connection => {
                return result.unwrap_or_else(|error| tracing::debug!(%error, "a client's connection ended"));
            }
            () = visit.leave.notified() => return tracing::debug!("a connection without a request made room for another"),
            () = &mut end => return,
            _ = stopped.changed(), if !is_ending => {
                is_ending = true;
                connection.as_mut().graceful_shutdown();
            }
        }
    }
}

/// The places of a listener, and who holds one without a request.
#[derive(Debug)]
struct Crowd {
    places: Arc<Semaphore>,
    /// Connections that wait for a request, the one that has waited longest first.
    waiting: Mutex<VecDeque<Arc<Notify>>>,
    /// A place has become free, or one that is held without a request.
    changed: Notify,
}

impl Crowd {
    fn new(connections_max: usize) -> Self {
        let places = Arc::new(Semaphore::new(connections_max));
        Self { places, waiting: Mutex::default(), changed: Notify::new() }
    }

    /// Waits for a place, and has the connection leave that has waited longest for a request where none is free.
    async fn enter(self: &Arc<Self>) -> Visit {
        let mut one_leaves = false;
        loop {
            if let Ok(place) = Arc::clone(&self.places).try_acquire_owned() {
                let visit = Visit { crowd: Arc::clone(self), leave: Arc::default(), place: Some(place) };
                visit.wait();
                return visit;
            }
            if !one_leaves && let Some(longest) = self.waiting().pop_front() {
                longest.notify_one();
                one_leaves = true;
            }
            self.changed.notified().await;
        }
    }

    fn waiting(&self) -> MutexGuard<'_, VecDeque<Arc<Notify>>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A connection that holds a place.
#[derive(Debug)]
struct Visit {
    crowd: Arc<Crowd>,
    /// Another connection needs the place.
    leave: Arc<Notify>,
    place: Option<OwnedSemaphorePermit>,
}

impl Visit {
    /// No request is under way.
    fn wait(&self) {
        self.crowd.waiting().push_back(Arc::clone(&self.leave));
        self.crowd.changed.notify_one();
    }

    /// A request is being answered.
    fn work(&self) {
        self.crowd.waiting().retain(|other| !Arc::ptr_eq(other, &self.leave));
    }
}

impl Drop for Visit {
    fn drop(&mut self) {
        self.work();
        drop(self.place.take());
        self.crowd.changed.notify_one();
    }
}

/// A request that is being answered, until the last byte of the answer was taken over for sending.
#[derive(Debug)]
struct Working(Arc<Visit>);

impl Working {
    fn new(visit: &Arc<Visit>) -> Self {
        visit.work();
        Self(Arc::clone(visit))
    }
}

impl Drop for Working {
    fn drop(&mut self) {
        self.0.wait();
    }
}

/// The body of an answer that is under way.
struct Held {
    body: Body,
    _working: Working,
}

impl HttpBody for Held {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
