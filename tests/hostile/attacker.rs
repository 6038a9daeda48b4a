//! A connection that sends arbitrary bytes.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use nctest::page::{self, Page};

use ncserverd::object::SegmentId;
use ncserverd::tls::{self, Trust, WEB_ALPN};
use ncserverd::web::Binding;
use ncserverd::wire::CloseCode;
use ncserverd::wire::frame::Reader;
use ncserverd::wire::message::{Accept, Get, Hello, Meant, Message, Meta, Request, RequestError};
use quinn::crypto::rustls::QuicClientConfig;
use quinn::{
    Connection, ConnectionError, Endpoint, RecvStream, SendStream, TransportConfig, VarInt,
};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{DigitallySignedStruct, SignatureScheme};
use tokio::net::UdpSocket;
use tokio::sync::Mutex;

use crate::BINDING;
use crate::ground::{Ground, PATIENCE};

pub(crate) use nctest::number::varint;

/// Where pages connect, and their origin.
pub(crate) const PAGE_URL: &str = "https://localhost/ncs";
pub(crate) const ORIGIN: &str = "https://page.example";

/// The largest number that can be encoded.
pub(crate) const HUGE: u64 = (1 << 62) - 1;

/// A frame of any type with any body.
pub(crate) fn frame(kind: u64, body: &[u8]) -> Vec<u8> {
    [&varint(kind)[..], &varint(body.len() as u64), body].concat()
}

/// A connection after its handshake, and its control stream.
pub(crate) struct Attacker {
    pub(crate) connection: Connection,
    endpoint: Endpoint,
    /// Its session, if it is a page.
    pub(crate) page: Option<Mutex<Page>>,
    send: SendStream,
    receive: RecvStream,
    reader: Reader,
    next: u64,
}

/// How an attacker receives.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Window {
    /// Bytes that it accepts on a stream without reading.
    pub(crate) stream: u32,
    /// Streams that the other side may open.
    pub(crate) streams: u32,
}

/// The values of a client.
pub(crate) const OPEN: Window = Window {
    stream: 1 << 20,
    streams: 512,
};

pub(crate) async fn dial(
    server: SocketAddr,
    trust: &Trust,
    window: Window,
) -> Result<(Endpoint, Connection), ConnectionError> {
    dial_from(Ipv4Addr::LOCALHOST, server, trust, window).await
}

async fn dial_from(
    address: Ipv4Addr,
    server: SocketAddr,
    trust: &Trust,
    window: Window,
) -> Result<(Endpoint, Connection), ConnectionError> {
    let endpoint = Endpoint::client((address, 0).into()).unwrap();
    let mut config = match BINDING {
        Binding::Quic => {
            quinn::ClientConfig::new(Arc::new(tls::client_config(trust, None).unwrap()))
        }
        Binding::Web => early(WEB_ALPN),
    };
    let mut transport = TransportConfig::default();
    transport.stream_receive_window(VarInt::from_u32(window.stream));
    let settings = u32::from(BINDING == Binding::Web);
    transport.max_concurrent_uni_streams(VarInt::from_u32(window.streams + settings));
    // Keeps the connection alive while it sends nothing.
    transport.keep_alive_interval(Some(Duration::from_secs(1)));
    config.transport_config(Arc::new(transport));
    let connection = endpoint
        .connect_with(config, server, "localhost")
        .unwrap()
        .await?;
    Ok((endpoint, connection))
}

/// Between a peer and a server: from some moment on the server gets nothing from the peer, which
/// still receives everything.
pub(crate) struct Gag {
    pub(crate) address: SocketAddr,
    /// Bytes that the peer may receive until then.
    left: Arc<AtomicUsize>,
}

impl Gag {
    pub(crate) async fn before(server: SocketAddr) -> Self {
        let peers = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let own = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        own.connect(server).await.unwrap();
        let (address, left) = (
            peers.local_addr().unwrap(),
            Arc::new(AtomicUsize::new(usize::MAX)),
        );
        let counted = Arc::clone(&left);
        tokio::spawn(async move {
            let (mut said, mut heard, mut peer) = ([0; 2048], [0; 2048], None);
            loop {
                tokio::select! {
                    Ok((length, from)) = peers.recv_from(&mut said) => {
                        peer = Some(from);
                        if counted.load(Ordering::Relaxed) > 0 {
                            let _ = own.send(&said[..length]).await;
                        }
                    }
                    Ok(length) = own.recv(&mut heard) => {
                        counted.store(
                            counted.load(Ordering::Relaxed).saturating_sub(length),
                            Ordering::Relaxed,
                        );
                        if let Some(peer) = peer {
                            let _ = peers.send_to(&heard[..length], peer).await;
                        }
                    }
                }
            }
        });
        Self { address, left }
    }

    /// Blocks the peer's packets once it has received this many bytes.
    pub(crate) fn after(&self, bytes: usize) {
        self.left.store(bytes, Ordering::Relaxed);
    }

    /// Whether the peer's packets are blocked.
    pub(crate) fn is_shut(&self) -> bool {
        self.left.load(Ordering::Relaxed) == 0
    }
}

/// A client that keeps TLS tickets and sends early data if they allow it.
pub(crate) fn early(protocol: &[u8]) -> quinn::ClientConfig {
    let builder = rustls::ClientConfig::builder_with_provider(Arc::new(
        rustls::crypto::ring::default_provider(),
    ));
    let builder = builder
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .dangerous();
    let mut tls = builder
        .with_custom_certificate_verifier(Arc::new(Gullible))
        .with_no_client_auth();
    tls.alpn_protocols = vec![protocol.to_vec()];
    tls.enable_early_data = true;
    quinn::ClientConfig::new(Arc::new(QuicClientConfig::try_from(tls).unwrap()))
}

/// Trusts any certificate.
#[derive(Debug)]
struct Gullible;

impl ServerCertVerifier for Gullible {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        rustls::crypto::ring::default_provider()
            .signature_verification_algorithms
            .supported_schemes()
    }
}

impl Attacker {
    /// Connects, and sends nothing.
    pub(crate) async fn silent(ground: &Ground) -> Self {
        Self::with(Ipv4Addr::LOCALHOST, ground.address, &ground.trust, OPEN).await
    }

    /// Connects and exchanges HELLOs.
    pub(crate) async fn greeted(ground: &Ground) -> Self {
        Self::greeted_with(ground.address, &ground.trust, OPEN).await
    }

    pub(crate) async fn greeted_with(server: SocketAddr, trust: &Trust, window: Window) -> Self {
        Self::with(Ipv4Addr::LOCALHOST, server, trust, window)
            .await
            .greet()
            .await
    }

    /// The same from another address of this machine.
    pub(crate) async fn greeted_from(address: Ipv4Addr, ground: &Ground) -> Self {
        Self::with(address, ground.address, &ground.trust, OPEN)
            .await
            .greet()
            .await
    }

    pub(crate) async fn greet(mut self) -> Self {
        self.say(&Message::Hello(Hello {
            n_max: 1024,
            ..Hello::defaults()
        }))
        .await;
        assert!(matches!(self.hear().await, Ok(Message::Hello(_))));
        self
    }

    async fn with(address: Ipv4Addr, server: SocketAddr, trust: &Trust, window: Window) -> Self {
        Self::with_url(address, server, trust, window, PAGE_URL).await
    }

    pub(crate) async fn with_url(
        address: Ipv4Addr,
        server: SocketAddr,
        trust: &Trust,
        window: Window,
        url: &str,
    ) -> Self {
        let (endpoint, connection) = dial_from(address, server, trust, window).await.unwrap();
        let (page, (send, receive)) = match BINDING {
            Binding::Quic => (None, connection.open_bi().await.unwrap()),
            Binding::Web => {
                let page = Page::open(&connection, url, Some(ORIGIN)).await.unwrap();
                let control = page.control().await.unwrap();
                (Some(Mutex::new(page)), control)
            }
        };
        Self {
            connection,
            endpoint,
            page,
            send,
            receive,
            reader: Reader::new(),
            next: 0,
        }
    }

    /// Sends bytes. If the server has closed, reading notices.
    pub(crate) async fn say_bytes(&mut self, bytes: &[u8]) {
        let _ = self.send.write_all(bytes).await;
    }

    pub(crate) async fn say(&mut self, message: &Message) {
        self.say_bytes(&message.to_frame()).await;
    }

    /// Ends the control stream.
    pub(crate) fn fall_silent(&mut self) {
        let _ = self.send.finish();
    }

    /// Stops reading answers.
    pub(crate) fn refuse_answers(&mut self) {
        self.receive
            .stop(VarInt::from_u32(CloseCode::Done.quic()))
            .unwrap();
    }

    /// Resets the control stream.
    pub(crate) fn reset(&mut self) {
        self.send
            .reset(VarInt::from_u32(CloseCode::Done.quic()))
            .unwrap();
    }

    /// Sends the same bytes repeatedly for this time; returns how many were accepted.
    pub(crate) async fn repeat(&mut self, bytes: &[u8], time: Duration) -> usize {
        let (end, mut taken) = (tokio::time::Instant::now() + time, 0);
        while let Ok(Ok(written)) =
            tokio::time::timeout_at(end, self.send.write(&bytes[taken % bytes.len()..])).await
        {
            taken += written;
        }
        taken
    }

    /// The next message, or how the connection ended.
    pub(crate) async fn hear(&mut self) -> Result<Message, ConnectionError> {
        loop {
            if let Some(message) = self.reader.next().unwrap() {
                return Ok(message);
            }
            match tokio::time::timeout(PATIENCE, self.receive.read_chunk(65_536, true))
                .await
                .expect("an answer in time")
            {
                Ok(Some(chunk)) => self.reader.push(&chunk.bytes),
                _ => {
                    return Err(tokio::time::timeout(PATIENCE, self.connection.closed())
                        .await
                        .expect("a closed connection"));
                }
            }
        }
    }

    /// The answer to a GET.
    pub(crate) async fn get(&mut self, path: &str) -> Result<Meta, RequestError> {
        self.next += 1;
        self.say(&get(self.next, path)).await;
        loop {
            match self.hear().await.unwrap() {
                Message::Meta(meta) if meta.request == self.next => return Ok(meta),
                Message::Error(error) if error.request == self.next => return Err(error),
                _ => {}
            }
        }
    }

    /// Whether it is still served.
    pub(crate) async fn is_served(&mut self) -> bool {
        self.connection.close_reason().is_none() && self.get(crate::ground::SMALL).await.is_ok()
    }

    /// The code that the connection is closed with.
    pub(crate) async fn close_code(&self) -> CloseCode {
        if let Some(page) = &self.page
            && let Some(code) = page.lock().await.close_code(PATIENCE).await
        {
            return code;
        }
        match tokio::time::timeout(PATIENCE, self.connection.closed())
            .await
            .expect("a closed connection")
        {
            ConnectionError::ApplicationClosed(close) => {
                let code = close.error_code.into_inner();
                let code = match BINDING {
                    Binding::Quic => code,
                    // The path has no room for the capsule.
                    Binding::Web => page::proto::error_from_http3(code).unwrap().into(),
                };
                CloseCode::from_quic(code).unwrap()
            }
            other => panic!("closed by {other}"),
        }
    }

    /// The code that the connection is closed with, and the time until then.
    pub(crate) async fn close_code_within(&self, from: Instant) -> (CloseCode, Duration) {
        let code = self.close_code().await;
        (code, from.elapsed())
    }

    /// The socket, for a second connection.
    pub(crate) fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }
}

pub(crate) fn get(request: u64, path: &str) -> Message {
    Message::Get(Get {
        request,
        path: path.to_owned(),
        offset: 0,
        length: None,
        held_only: false,
    })
}

/// A request for coded blocks of a generation, on a stream.
pub(crate) fn request(alias: u16, segment: SegmentId, generation: u32, credit: u32) -> Request {
    let accept = Accept {
        coded: true,
        systematic: false,
        datagrams: false,
        recoded: false,
    };
    Request {
        alias,
        segment,
        generation,
        deadline_ms: 3_600_000,
        credit,
        accept,
        ranges: Vec::new(),
        meant: Meant::LastNamed,
    }
}
