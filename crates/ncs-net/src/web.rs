//! WebTransport over HTTP/3 (draft-ietf-webtrans-http3, RFC 9220, RFC 9297): how a web page reaches
//! a server of `ncs/1`.
//!
//! A page's QUIC connection carries one session, and nothing else. Its first bidirectional stream,
//! of id 0, is the CONNECT request for [`PATH`]; the second is the control stream of `ncs/1`. So
//! what WebTransport puts in front of streams and datagrams is constant ([`Binding`]), and QUIC
//! gets the blocks as on any other connection: nothing is copied, and streams keep their
//! priorities. The connection's remaining streams, the page's unidirectional ones for SETTINGS and
//! QPACK, are kept and not read further: QUIC's limits bound what they hold.
//!
//! `web_transport_proto` has the bytes of HTTP/3.

mod origins;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use ncs_proto::wire::CloseCode;
use quinn::{Connection, ConnectionError, RecvStream, SendStream, VarInt};
use serde::{Deserialize, Serialize};
use tokio::io::AsyncReadExt as _;
use tokio::sync::Mutex;
use web_transport_proto as proto;
use web_transport_proto::http::StatusCode;

use crate::endpoint;
use crate::tls::{self, ForPages, Rotated, ServerIdentity, WEB_ALPN};
pub use origins::{NotAnOrigin, Origins};

/// The path of the CONNECT request.
pub const PATH: &str = "/ncs";
/// The name of the query parameter that carries a token.
const TOKEN: &str = "token";

/// How long the page may take to acknowledge the end of its session.
const CLOSE_GRACE: Duration = Duration::from_secs(1);
/// The type of the capsule that ends a session.
const CLOSE_SESSION: u64 = 0x2843;
/// Bytes of a frame or capsule that are skipped at once.
const SKIPPED: usize = 16 << 10;
/// A page is heard at 1 MiB a second on its request, as on its control stream. An honest one sends
/// nothing there but the end.
const CAPSULES_BURST: u64 = 64 << 10;
const CAPSULES_PAUSE: Duration = Duration::from_millis(62);
/// The interval of looks for a new term of certificates.
const ROTATION_LOOK: Duration = Duration::from_secs(600);
/// H3_NO_ERROR and H3_GENERAL_PROTOCOL_ERROR (RFC 9114, section 8.1).
const NO_ERROR: VarInt = VarInt::from_u32(0x100);
const PROTOCOL_ERROR: VarInt = VarInt::from_u32(0x101);

/// Which pages may connect, and with which certificate.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// The origins of these pages. Without any, no page may.
    pub origins: Origins,
    /// The certificate that pages see.
    pub certificate: Certificate,
    /// The TCP address of a player for viewers without a site. Nowhere by default.
    pub listen: Option<SocketAddr>,
}

/// The certificate that pages see.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Certificate {
    /// The pair of `[tls]` if it is configured, otherwise [`Certificate::Rotated`].
    #[default]
    Auto,
    /// The pair of `[tls]`, which browsers must trust.
    Tls,
    /// Short-lived ones, which pages know by their hashes (`serverCertificateHashes`).
    Rotated,
}

impl Config {
    /// The server's identity, with the certificate that pages see.
    pub fn show_pages(
        &self,
        identity: ServerIdentity,
        tls: &tls::Config,
    ) -> Result<ServerIdentity, tls::Error> {
        if self.origins.is_empty() {
            return Ok(identity);
        }
        let web = match self.certificate {
            Certificate::Auto if tls.cert.is_some() => ForPages::Same,
            Certificate::Tls => ForPages::Same,
            Certificate::Auto | Certificate::Rotated => {
                ForPages::Rotated(Arc::new(Rotated::open(tls, tls::now())?))
            }
        };
        Ok(identity.with_web(web))
    }
}

/// Takes the certificates of each term as it begins.
pub async fn keep_rotating(rotated: Arc<Rotated>) {
    let mut tick = tokio::time::interval(ROTATION_LOOK);
    loop {
        tick.tick().await;
        match rotated.turn(tls::now()) {
            Ok(false) => {}
            Ok(true) => {
                let [present, next] = rotated.fingerprints();
                tracing::info!(%present, %next, "pages see another certificate");
            }
            Err(error) => tracing::error!(
                %error,
                "the next certificate for pages is not kept: after a restart it is another one",
            ),
        }
    }
}

/// How messages, streams and datagrams of `ncs/1` travel on a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Binding {
    /// As they are.
    Quic,
    /// In a session of WebTransport.
    Web,
}

impl Binding {
    /// The one that the handshake has chosen, by ALPN.
    pub fn of(connection: &Connection) -> Self {
        match tls::alpn(connection) {
            Some(alpn) if alpn == WEB_ALPN => Self::Web,
            _ => Self::Quic,
        }
    }

    /// The first bytes of each unidirectional stream: its type, and the session.
    pub fn stream_head(self) -> &'static [u8] {
        match self {
            Self::Quic => &[],
            Self::Web => &[0x40, 0x54, 0x00],
        }
    }

    /// The first bytes of each datagram: the session.
    pub fn datagram_head(self) -> &'static [u8] {
        match self {
            Self::Quic => &[],
            Self::Web => &[0x00],
        }
    }

    /// The largest datagram that the connection takes now, without these bytes.
    pub fn datagram_max(self, connection: &Connection) -> Option<usize> {
        connection
            .max_datagram_size()?
            .checked_sub(self.datagram_head().len())
    }

    /// The code of RESET_STREAM and STOP_SENDING.
    pub fn stream_code(self, code: CloseCode) -> VarInt {
        match self {
            Self::Quic => VarInt::from_u32(code.quic()),
            Self::Web => VarInt::from_u64(proto::error_to_http3(code.quic()))
                .expect("these codes have 48 bits"),
        }
    }
}

/// Why there is no session.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The connection has ended.
    #[error(transparent)]
    Connection(#[from] ConnectionError),
    /// Its bytes are not those of WebTransport.
    #[error("not a session of WebTransport: {0}")]
    Malformed(String),
    /// Another path than [`PATH`].
    #[error("no such path")]
    Path,
    /// The page's origin is not among the configured ones.
    #[error("pages of this origin may not connect")]
    Origin,
}

impl Error {
    /// All names.
    pub const NAMES: [&str; 4] = ["connection", "malformed", "path", "origin"];

    /// A short name, for a metric.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Connection(_) => "connection",
            Self::Malformed(_) => "malformed",
            Self::Path => "path",
            Self::Origin => "origin",
        }
    }
}

/// A session that a page has begun, and its control stream.
#[derive(Debug)]
pub struct Opened {
    /// The session.
    pub session: Session,
    /// Towards the page.
    pub send: SendStream,
    /// From the page.
    pub receive: RecvStream,
    /// The token in the query.
    pub token: Option<String>,
}

/// A session, which lasts until [`Session::close`], or until the page ends it.
#[derive(Debug)]
pub struct Session {
    connection: Connection,
    /// Of the CONNECT request. A page whose end of it were refused would not hear how the session
    /// ends.
    send: SendStream,
    receive: Arc<Mutex<RecvStream>>,
    /// HTTP/3's own streams, which must stay open.
    _settings: SendStream,
    _streams: Vec<RecvStream>,
}

/// The page's end of the CONNECT request.
#[derive(Debug)]
pub struct Ending(Arc<Mutex<RecvStream>>);

/// Answers the requests of a page until its control stream is open.
pub async fn accept(connection: &Connection, origins: &Origins) -> Result<(Opened, Ending), Error> {
    let ((mut send, mut receive), settings, streams) = tokio::try_join!(
        async { Ok::<_, Error>(connection.accept_bi().await?) },
        send_settings(connection),
        read_settings(connection),
    )?;
    let request = proto::ConnectRequest::read(&mut receive)
        .await
        .map_err(malformed)?;
    let refusal = if request.url.path() != PATH {
        Some((StatusCode::NOT_FOUND, Error::Path))
    } else if !origins.allow(request.headers.get("origin")) {
        Some((StatusCode::FORBIDDEN, Error::Origin))
    } else {
        None
    };
    if let Some((status, error)) = refusal {
        if proto::ConnectResponse::new(status)
            .write(&mut send)
            .await
            .is_ok()
        {
            // If not, the connection ends without an answer.
            let _ = tokio::time::timeout(CLOSE_GRACE, is_heard(&mut send)).await;
        }
        return Err(error);
    }
    proto::ConnectResponse::OK
        .write(&mut send)
        .await
        .map_err(malformed)?;
    let (control_send, mut control_receive) = connection.accept_bi().await?;
    for expected in [proto::Frame::WEBTRANSPORT.0, proto::VarInt::from_u32(0)] {
        let number = proto::VarInt::read(&mut control_receive)
            .await
            .map_err(malformed)?;
        if number != expected {
            let reason = "the second bidirectional stream is not one of the session".to_owned();
            return Err(Error::Malformed(reason));
        }
    }
    let token = request.url.query_pairs().find(|(name, _)| name == TOKEN);
    let receive = Arc::new(Mutex::new(receive));
    let ending = Ending(Arc::clone(&receive));
    let opened = Opened {
        session: Session {
            connection: connection.clone(),
            send,
            receive,
            _settings: settings,
            _streams: streams,
        },
        send: control_send,
        receive: control_receive,
        token: token.map(|(_, token)| token.into_owned()),
    };
    Ok((opened, ending))
}

impl Session {
    /// Tells the page how the session ends, and closes the connection.
    pub async fn close(self, code: CloseCode, reason: &str) {
        // The page's half of the request is kept until the end.
        let Self {
            connection,
            mut send,
            receive: _receive,
            ..
        } = self;
        let frame = end_of_session(code, reason);
        let heard = tokio::time::timeout(CLOSE_GRACE, async {
            send.write_all(&frame).await.is_ok() && is_heard(&mut send).await
        });
        let code = match heard.await {
            Ok(true) => NO_ERROR,
            // The path may have no room for the capsule.
            _ => Binding::Web.stream_code(code),
        };
        if code == NO_ERROR {
            // A browser that has read the capsule closes. If the server were first, it might tell
            // the page of a lost connection.
            let _ = tokio::time::timeout(CLOSE_GRACE, connection.closed()).await;
        }
        endpoint::close_with(&connection, code, reason);
    }
}

/// The DATA frame that tells a page how its session ends.
pub fn end_of_session(code: CloseCode, reason: &str) -> Vec<u8> {
    let capsule = proto::Capsule::CloseWebTransportSession {
        code: code.quic(),
        reason: reason.to_owned(),
    };
    let (mut body, mut frame) = (Vec::new(), Vec::new());
    capsule.encode(&mut body);
    proto::Frame::DATA.encode(&mut frame);
    let length = u32::try_from(body.len()).expect("a reason is short");
    proto::VarInt::from_u32(length).encode(&mut frame);
    frame.extend(body);
    frame
}

impl Ending {
    /// Returns when the page has ended the session, or broken the rules of HTTP/3.
    pub async fn ended(self) {
        let mut stream = self.0.lock().await;
        let mut capsules = Capsules {
            stream: &mut stream,
            left: 0,
            taken: 0,
        };
        // All but one are skipped (RFC 9297, section 3.2), and nothing of them is kept.
        while let Some(kind) = capsules.number().await
            && kind != CLOSE_SESSION
        {
            let Some(length) = capsules.number().await else {
                return;
            };
            if capsules.skip(length).await.is_none() {
                return;
            }
        }
    }
}

/// The capsules in the DATA frames of a request. They are read at a limited rate, and flow control
/// slows a page that sends more.
struct Capsules<'a> {
    stream: &'a mut RecvStream,
    /// Bytes of the present DATA frame.
    left: u64,
    /// Bytes since the last pause.
    taken: u64,
}

impl Capsules<'_> {
    /// A variable-length integer; `None` at the end.
    async fn number(&mut self) -> Option<u64> {
        let first = self.byte().await?;
        let mut number = u64::from(first & 0x3f);
        for _ in 1..1 << (first >> 6) {
            number = number << 8 | u64::from(self.byte().await?);
        }
        Some(number)
    }

    async fn byte(&mut self) -> Option<u8> {
        let chunk = self.chunk(1).await?;
        chunk.first().copied()
    }

    async fn skip(&mut self, mut length: u64) -> Option<()> {
        while length > 0 {
            let most = usize::try_from(length).unwrap_or(usize::MAX).min(SKIPPED);
            length -= self.chunk(most).await?.len() as u64;
        }
        Some(())
    }

    /// The next bytes of DATA frames, at least one.
    async fn chunk(&mut self, most: usize) -> Option<Bytes> {
        while self.left == 0 {
            let kind = self.head().await?;
            let length = self.head().await?;
            if kind == proto::Frame::DATA.0.into_inner() {
                self.left = length;
                continue;
            }
            let mut rest = length;
            while rest > 0 {
                let most = usize::try_from(rest).unwrap_or(usize::MAX).min(SKIPPED);
                rest -= self.read(most).await?.len() as u64;
            }
        }
        let most = usize::try_from(self.left).unwrap_or(usize::MAX).min(most);
        let bytes = self.read(most).await?;
        self.left -= bytes.len() as u64;
        Some(bytes)
    }

    /// A number in the head of a frame.
    async fn head(&mut self) -> Option<u64> {
        let number = proto::VarInt::read(self.stream).await.ok()?;
        self.pace(1).await;
        Some(number.into_inner())
    }

    async fn read(&mut self, most: usize) -> Option<Bytes> {
        let chunk = self.stream.read_chunk(most, true).await.ok()??;
        self.pace(chunk.bytes.len() as u64).await;
        Some(chunk.bytes)
    }

    async fn pace(&mut self, bytes: u64) {
        self.taken += bytes;
        if self.taken >= CAPSULES_BURST {
            self.taken = 0;
            tokio::time::sleep(CAPSULES_PAUSE).await;
        }
    }
}

/// Closes the connection of a page that has begun no session in time.
pub fn close_early(connection: &Connection, reason: &str) {
    endpoint::close_with(connection, PROTOCOL_ERROR, reason);
}

/// Closes the connection of a page that gets no session.
pub fn refuse(connection: &Connection, error: &Error) {
    let code = match error {
        // The response has said why.
        Error::Path | Error::Origin => NO_ERROR,
        Error::Connection(_) | Error::Malformed(_) => PROTOCOL_ERROR,
    };
    endpoint::close_with(connection, code, &error.to_string());
}

/// Ends a CONNECT request. Returns when the page has acknowledged all of it.
async fn is_heard(send: &mut SendStream) -> bool {
    send.finish().is_ok() && matches!(send.stopped().await, Ok(None))
}

async fn send_settings(connection: &Connection) -> Result<SendStream, Error> {
    let mut settings = proto::Settings::default();
    settings.enable_webtransport(1);
    let mut send = connection.open_uni().await?;
    settings.write(&mut send).await.map_err(malformed)?;
    Ok(send)
}

/// Reads the page's SETTINGS, and returns the streams that have begun.
async fn read_settings(connection: &Connection) -> Result<Vec<RecvStream>, Error> {
    let mut streams = Vec::new();
    for _ in 0..endpoint::PAGE_UNIDIRECTIONAL {
        let mut stream = connection.accept_uni().await?;
        let kind = proto::VarInt::read(&mut stream).await.map_err(malformed)?;
        if kind != proto::StreamUni::CONTROL.0 {
            streams.push(stream);
            continue;
        }
        let mut head = Vec::new();
        kind.encode(&mut head);
        let settings = proto::Settings::read(&mut head.as_slice().chain(&mut stream))
            .await
            .map_err(malformed)?;
        streams.push(stream);
        if settings.supports_webtransport() == 0 {
            return Err(Error::Malformed("it is not offered".to_owned()));
        }
        return Ok(streams);
    }
    Err(Error::Malformed("no SETTINGS".to_owned()))
}

/// The library says what is wrong; of a failed stream, it says that the bytes have ended.
fn malformed(error: impl std::error::Error) -> Error {
    Error::Malformed(error.to_string())
}
