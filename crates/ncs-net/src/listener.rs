//! An HTTP listener whose places cannot be held by clients without requests.
//!
//! One task accepts, and one runs for each connection. A request's head must arrive within
//! `head_timeout`, which also ends idle connections. There are `connections_max` places. When all
//! are taken, a new connection gets the place of one that waits for the head of a request: of the
//! network with the most places the one that has waited longest. So half-sent requests do not keep
//! out complete ones, and one network that sends many small ones keeps out no other. A connection
//! whose request is being answered keeps its place while its client reads. If its client has read
//! nothing for `stall_timeout`, it is ended when another needs its place, or on request
//! ([`Crowd::end_stalled`]). If no place can be freed, new connections wait in the kernel's queue.
//!
//! With TLS, the handshake counts as the head of the first request: it has a place, and as long.
//!
//! An answer to HTTP/1.0 without a known length ends with its connection. If it is cut short, the
//! connection is reset, because otherwise the answer would look complete.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::convert::Infallible;
use std::future::{Future, pending};
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use axum::body::{Body, Bytes, HttpBody};
use axum::http::header::CONTENT_LENGTH;
use axum::http::{Request, Response, Version};
use axum::serve::Listener;
use hyper::body::{Frame, Incoming, SizeHint};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use ncs_proto::admission::account::neighbourhood;
use rustls::ServerConfig;
use socket2::Socket;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tracing::Instrument as _;

/// The limits of clients.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Concurrent connections.
    pub connections_max: usize,
    /// The maximum time for the head of a request, and of an idle connection.
    pub head_timeout: Duration,
    /// How long a client may read nothing of its answer while others need its place.
    pub stall_timeout: Duration,
    /// The maximum life of a connection. Scrapers reconnect by themselves; a player may read one
    /// answer for as long as it plays.
    pub life: Option<Duration>,
}

/// Answers requests until `stop` completes, and then finishes those in progress. Dropping it cuts
/// all connections.
///
/// `answer` gets the request and its local address.
pub async fn serve<F, A>(
    listener: TcpListener,
    crowd: Arc<Crowd>,
    answer: F,
    stop: impl Future<Output = ()>,
) where
    F: Fn(Request<Incoming>, IpAddr) -> A + Clone + Send + 'static,
    A: Future<Output = Response<Body>> + Send + 'static,
{
    let answer = move |request, ends: Ends| answer(request, ends.local);
    serve_with(listener, crowd, None, answer, stop).await;
}

/// The same over TLS, if there is a configuration for it. `answer` gets both addresses.
pub async fn serve_with<F, A>(
    mut listener: TcpListener,
    crowd: Arc<Crowd>,
    tls: Option<Arc<ServerConfig>>,
    answer: F,
    stop: impl Future<Output = ()>,
) where
    F: Fn(Request<Incoming>, Ends) -> A + Clone + Send + 'static,
    A: Future<Output = Response<Body>> + Send + 'static,
{
    let tls = tls.map(TlsAcceptor::from);
    let (stopping, stopped) = watch::channel(());
    let mut connections = JoinSet::new();
    tokio::pin!(stop);
    loop {
        tokio::select! {
            (stream, client) = Listener::accept(&mut listener) => {
                let visit = tokio::select! {
                    visit = crowd.enter(client.ip()) => visit,
                    () = &mut stop => break,
                };
                let span = tracing::debug_span!("http", %client);
                let attending = attend(stream, visit, tls.clone(), answer.clone(), stopped.clone());
                connections.spawn(attending.instrument(span));
            }
            Some(_) = connections.join_next() => {}
            () = &mut stop => break,
        }
    }
    drop((listener, stopping));
    while connections.join_next().await.is_some() {}
}

/// The addresses of a connection, without their ports.
#[derive(Debug, Clone, Copy)]
pub struct Ends {
    /// Of the listener.
    pub local: IpAddr,
    /// Of the client.
    pub client: IpAddr,
}

/// Answers the requests of one connection.
async fn attend<F, A>(
    stream: TcpStream,
    visit: Visit,
    tls: Option<TlsAcceptor>,
    answer: F,
    stopped: watch::Receiver<()>,
) where
    F: Fn(Request<Incoming>, Ends) -> A,
    A: Future<Output = Response<Body>>,
{
    let (Ok(local), Ok(client)) = (stream.local_addr(), stream.peer_addr()) else {
        return;
    };
    let ends = Ends {
        local: local.ip().to_canonical(),
        client: client.ip().to_canonical(),
    };
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "no TCP_NODELAY");
    }
    let Ok(socket) = stream
        .as_fd()
        .try_clone_to_owned()
        .map(Socket::from)
        .map(Arc::new)
    else {
        return;
    };
    // Unread answers must not fill the memory that the kernel has for all connections.
    if let Err(error) = socket.set_send_buffer_size(SEND_BUFFER) {
        tracing::debug!(%error, "no SO_SNDBUF");
    }
    let Some(tls) = tls else {
        return converse(stream, socket, ends, visit, answer, stopped).await;
    };
    let handshake = timeout(visit.crowd.limits.head_timeout, tls.accept(stream));
    let stream = tokio::select! {
        shaken = handshake => shaken,
        () = visit.seat.leave.notified() => {
            return tracing::debug!("a TLS handshake made room for another connection");
        }
    };
    match stream {
        Ok(Ok(stream)) => converse(stream, socket, ends, visit, answer, stopped).await,
        Ok(Err(error)) => tracing::debug!(%error, "a TLS handshake failed"),
        Err(_) => tracing::debug!("a TLS handshake took too long"),
    }
}

async fn converse<S, F, A>(
    stream: S,
    socket: Arc<Socket>,
    addresses: Ends,
    visit: Visit,
    answer: F,
    mut stopped: watch::Receiver<()>,
) where
    S: AsyncRead + AsyncWrite + Unpin,
    F: Fn(Request<Incoming>, Ends) -> A,
    A: Future<Output = Response<Body>>,
{
    let limits = visit.crowd.limits;
    let visit = Arc::new(visit);
    let of_visit = Arc::clone(&visit);
    let of_service = Arc::clone(&socket);
    let service = service_fn(move |request: Request<Incoming>| {
        let (socket, is_old) = (
            Arc::clone(&of_service),
            request.version() == Version::HTTP_10,
        );
        let (working, answered) = (Working::new(&of_visit), answer(request, addresses));
        async move {
            let answered = answered.await;
            let has_length = answered.headers().contains_key(CONTENT_LENGTH)
                || answered.body().size_hint().exact().is_some();
            let ends = (is_old && !has_length).then(|| EndsWithConnection::new(socket));
            Ok::<_, Infallible>(answered.map(|body| Held {
                body,
                ends,
                working,
            }))
        }
    });
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new())
        .header_read_timeout(limits.head_timeout);
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
                return result.unwrap_or_else(|error| {
                    tracing::debug!(%error, "a client's connection ended");
                });
            }
            () = visit.seat.leave.notified() => {
                // The kernel would keep what was not read.
                EndsWithConnection::reset_on_close(&socket, true);
                return tracing::debug!("an idle connection made room for another");
            }
            () = &mut end => return,
            _ = stopped.changed(), if !is_ending => {
                is_ending = true;
                connection.as_mut().graceful_shutdown();
            }
        }
    }
}

/// The places of a listener, and the connections that hold them.
#[derive(Debug)]
pub struct Crowd {
    limits: Limits,
    places: Arc<Semaphore>,
    seats: Mutex<Vec<Arc<Seat>>>,
    /// Notified when a place has become free, or a connection waits without a request.
    changed: Notify,
}

impl Crowd {
    /// All places are free.
    pub fn new(limits: Limits) -> Arc<Self> {
        let places = Arc::new(Semaphore::new(limits.connections_max));
        Arc::new(Self {
            limits,
            places,
            seats: Mutex::default(),
            changed: Notify::new(),
        })
    }

    /// Ends the connection whose client has read nothing of its answer for the longest time, if
    /// that is at least `stall_timeout`. Returns whether there is one; its answer is dropped soon
    /// after.
    pub fn end_stalled(&self, now: Instant) -> bool {
        let stall_timeout = self.limits.stall_timeout;
        end_first(&self.seats(), |seat| match *seat.wait() {
            Wait::Reader(since) if now.saturating_duration_since(since) >= stall_timeout => {
                Some(since)
            }
            _ => None,
        })
    }

    /// Ends a connection that waits for the head of a request: of the network with the most places
    /// the one that has waited longest.
    fn end_without_request(&self) -> bool {
        let seats = self.seats();
        let mut places: HashMap<IpAddr, usize> = HashMap::new();
        for seat in &*seats {
            *places.entry(seat.network).or_default() += 1;
        }
        end_first(&seats, |seat| match *seat.wait() {
            Wait::Head(since) => Some((Reverse(places[&seat.network]), since)),
            _ => None,
        })
    }

    /// Waits for a place. If none is free, ends a connection that may be ended.
    async fn enter(self: &Arc<Self>, client: IpAddr) -> Visit {
        let mut one_leaves = false;
        loop {
            if let Ok(place) = Arc::clone(&self.places).try_acquire_owned() {
                let seat = Arc::new(Seat {
                    network: neighbourhood(client),
                    leave: Notify::new(),
                    wait: Mutex::new(Wait::Head(Instant::now())),
                });
                self.seats().push(Arc::clone(&seat));
                return Visit {
                    crowd: Arc::clone(self),
                    seat,
                    place: Some(place),
                };
            }
            one_leaves =
                one_leaves || self.end_without_request() || self.end_stalled(Instant::now());
            let _ = timeout(LOOK_AGAIN, self.changed.notified()).await;
        }
    }

    fn seats(&self) -> MutexGuard<'_, Vec<Arc<Seat>>> {
        self.seats.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Ends the connection with the smallest rank. False if none has one.
fn end_first<R: Ord>(seats: &[Arc<Seat>], rank: impl Fn(&Seat) -> Option<R>) -> bool {
    let first = seats
        .iter()
        .filter_map(|seat| Some((rank(seat)?, seat)))
        .min_by(|(one, _), (other, _)| one.cmp(other));
    let Some((_, seat)) = first else {
        return false;
    };
    // So that the next call chooses another one.
    *seat.wait() = Wait::Answer;
    seat.leave.notify_one();
    true
}

/// A connection as seen by others.
#[derive(Debug)]
struct Seat {
    network: IpAddr,
    /// Notified when others need its place, or the memory of its answer.
    leave: Notify,
    wait: Mutex<Wait>,
}

impl Seat {
    fn wait(&self) -> MutexGuard<'_, Wait> {
        self.wait.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a connection waits for.
#[derive(Debug, Clone, Copy)]
enum Wait {
    /// The head of a request, since this time.
    Head(Instant),
    /// The answer, or its next part.
    Answer,
    /// Its client, which has not taken the part that was ready at this time.
    Reader(Instant),
}

/// A connection with a place.
#[derive(Debug)]
struct Visit {
    crowd: Arc<Crowd>,
    seat: Arc<Seat>,
    place: Option<OwnedSemaphorePermit>,
}

impl Drop for Visit {
    fn drop(&mut self) {
        self.crowd
            .seats()
            .retain(|other| !Arc::ptr_eq(other, &self.seat));
        drop(self.place.take());
        self.crowd.changed.notify_one();
    }
}

/// A request in progress, until the last byte of its answer was taken for sending.
#[derive(Debug)]
struct Working(Arc<Visit>);

impl Working {
    fn new(visit: &Arc<Visit>) -> Self {
        *visit.seat.wait() = Wait::Answer;
        Self(Arc::clone(visit))
    }
}

impl Drop for Working {
    fn drop(&mut self) {
        *self.0.seat.wait() = Wait::Head(Instant::now());
        self.0.crowd.changed.notify_one();
    }
}

/// A connection whose end marks the end of its answer: closing it before that resets it.
struct EndsWithConnection(Arc<Socket>);

impl EndsWithConnection {
    fn new(socket: Arc<Socket>) -> Self {
        Self::reset_on_close(&socket, true);
        Self(socket)
    }

    fn complete(&self) {
        Self::reset_on_close(&self.0, false);
    }

    fn reset_on_close(socket: &Socket, resets: bool) {
        if let Err(error) = socket.set_linger(resets.then_some(Duration::ZERO)) {
            tracing::debug!(%error, "no SO_LINGER");
        }
    }
}

/// The body of an answer in progress.
struct Held {
    body: Body,
    ends: Option<EndsWithConnection>,
    working: Working,
}

impl HttpBody for Held {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(context);
        // The next part is requested when there is room for it.
        *self.working.0.seat.wait() = if polled.is_ready() {
            Wait::Reader(Instant::now())
        } else {
            Wait::Answer
        };
        if let (Poll::Ready(None), Some(ends)) = (&polled, &self.ends) {
            ends.complete();
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Bytes that the kernel holds for a client, at most; it takes twice that for its own records.
const SEND_BUFFER: usize = 256 << 10;
/// The interval of checks for stalled clients, while a connection waits for a place.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use std::io::ErrorKind;

    use futures_util::{StreamExt, stream};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    fn seat(wait: Wait) -> Arc<Seat> {
        Arc::new(Seat {
            network: [10, 0, 0, 1].into(),
            leave: Notify::new(),
            wait: Mutex::new(wait),
        })
    }

    #[tokio::test]
    async fn the_network_with_the_most_places_gives_one_up() {
        let second = Duration::from_secs(1);
        let crowd = Crowd::new(Limits {
            connections_max: 4,
            head_timeout: second,
            stall_timeout: second,
            life: None,
        });
        let mut visits = Vec::new();
        for last in [2, 1, 1, 1] {
            visits.push(crowd.enter([10, 0, 0, last].into()).await);
        }
        let of_newcomer = Arc::clone(&crowd);
        let newcomer =
            tokio::spawn(async move { of_newcomer.enter([10, 0, 0, 3].into()).await.seat.network });
        // Not the one that has waited longest of all.
        let leaves = timeout(second, visits[1].seat.leave.notified());
        leaves.await.expect("it is asked to leave");
        drop(visits.remove(1));
        assert_eq!(newcomer.await.unwrap(), IpAddr::from([10, 0, 0, 3]));
        for visit in &visits {
            let leaves = timeout(Duration::ZERO, visit.seat.leave.notified());
            assert!(leaves.await.is_err(), "{visit:?}");
        }
    }

    #[test]
    fn who_reads_or_waits_for_us_keeps_its_place() {
        let stall_timeout = Duration::from_secs(30);
        let crowd = Crowd::new(Limits {
            connections_max: 8,
            head_timeout: Duration::from_secs(15),
            stall_timeout,
            life: None,
        });
        let now = Instant::now();
        let then = |seconds| now + Duration::from_secs(seconds);
        let seats = [
            Wait::Answer,
            Wait::Reader(then(10)),
            Wait::Reader(then(5)),
            Wait::Head(then(2)),
            Wait::Head(then(1)),
        ]
        .map(seat);
        crowd.seats().extend(seats.iter().cloned());
        assert!(
            !crowd.end_stalled(then(34)),
            "nobody has stalled for long enough"
        );
        assert!(
            crowd.end_stalled(then(100)) && matches!(*seats[2].wait(), Wait::Answer),
            "the one that stalled first"
        );
        assert!(crowd.end_stalled(then(100)) && matches!(*seats[1].wait(), Wait::Answer));
        assert!(!crowd.end_stalled(then(100)), "each once");
        assert!(
            crowd.end_without_request() && matches!(*seats[4].wait(), Wait::Answer),
            "the one that waited longest"
        );
        assert!(crowd.end_without_request() && !crowd.end_without_request());
    }

    /// The answer without a length that a client of this HTTP version reads, if it ends or is cut
    /// short after the beginning.
    async fn read(version: &str, is_whole: bool) -> Result<String, ErrorKind> {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let limits = Limits {
            connections_max: 1,
            head_timeout: Duration::from_secs(10),
            stall_timeout: Duration::from_secs(30),
            life: None,
        };
        let is_read = Arc::new(Notify::new());
        let goes_on = Arc::clone(&is_read);
        let answer = move |_, _| {
            let goes_on = Arc::clone(&goes_on);
            let end = async move {
                goes_on.notified().await;
                if is_whole {
                    Ok("end")
                } else {
                    Err(std::io::Error::from(ErrorKind::TimedOut))
                }
            };
            let body = Body::from_stream(stream::iter([Ok("begin, ")]).chain(stream::once(end)));
            async move { Response::new(body) }
        };
        let serving = tokio::spawn(serve(listener, Crowd::new(limits), answer, pending()));
        let mut client = TcpStream::connect(address).await.unwrap();
        let head = format!("GET / HTTP/{version}\r\nHost: a\r\nConnection: close\r\n\r\n");
        client.write_all(head.as_bytes()).await.unwrap();
        let mut said = String::new();
        while !said.contains("begin, ") {
            said.push(client.read_u8().await.unwrap().into());
        }
        is_read.notify_one();
        let read = client.read_to_string(&mut said).await;
        serving.abort();
        read.map(|_| said).map_err(|error| error.kind())
    }

    #[tokio::test]
    async fn an_answer_that_ends_with_its_connection_does_not_look_complete_where_it_is_cut() {
        assert!(
            read("1.0", true)
                .await
                .is_ok_and(|said| said.ends_with("\r\n\r\nbegin, end"))
        );
        assert_eq!(read("1.0", false).await, Err(ErrorKind::ConnectionReset));
        // In HTTP/1.1 the last chunk marks the end.
        assert!(
            read("1.1", true)
                .await
                .is_ok_and(|said| said.ends_with("0\r\n\r\n"))
        );
        assert!(
            read("1.1", false)
                .await
                .is_ok_and(|said| said.ends_with("begin, \r\n"))
        );
    }
}
