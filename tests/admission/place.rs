//! A server with its own origin and two streams, `live` and `secret`, and two kinds of visitors:
//! the client, and a plain connection that sends any message.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use ncserverd::lab::origin::Origin;
use ncserverd::object::SegmentId;
use ncserverd::peer::{self, Client};
use ncserverd::server::Server;
use ncserverd::telemetry::Readiness;
use ncserverd::tls::{self, ClientPair, ServerIdentity, Trust};
use ncserverd::wire::frame::Reader;
use ncserverd::wire::message::{
    Accept, Credential, Delivery, Get, Hello, Meant, Message, Meta, Request, RequestError, Token,
    VisitId,
};
use ncserverd::wire::{CODE_BASE, CloseCode};
use ncserverd::{admission, config, stream};
use prometheus::Registry;
use quinn::{Connection, ConnectionError, Endpoint, RecvStream, SendStream};
use tempfile::TempDir;

use nctest::mint;

pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
pub(crate) const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

pub(crate) struct Place {
    pub(crate) origin: Origin,
    pub(crate) server: Server,
    pub(crate) config: config::Config,
    pub(crate) trust: Trust,
    pub(crate) directory: TempDir,
    registry: Registry,
}

/// Bytes that differ with the seed.
pub(crate) fn bytes(seed: u8, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    blake3::Hasher::new_keyed(&[seed; 32])
        .finalize_xof()
        .fill(&mut bytes);
    bytes
}

impl Place {
    /// A server that admits holders of tokens made with [`mint::keys`].
    pub(crate) async fn open() -> Self {
        Self::with(|_, _| {}).await
    }

    /// A server that also admits certificates of this authority.
    pub(crate) async fn with_clients_of(authority: &mint::Authority) -> Self {
        let pem = authority.pem();
        Self::with(|rules, directory| {
            let file = directory.join("ca.pem");
            std::fs::write(&file, pem).unwrap();
            rules.clients_ca = Some(file);
        })
        .await
    }

    /// The same, listening on this address.
    pub(crate) async fn listening(listen: SocketAddr) -> Self {
        Self::listening_with(listen, |_, _| {}).await
    }

    /// The same with other rules; the second argument of `rules` is the directory of the keys.
    pub(crate) async fn with(rules: impl FnOnce(&mut admission::Config, &std::path::Path)) -> Self {
        Self::listening_with(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), rules).await
    }

    async fn listening_with(
        listen: SocketAddr,
        rules: impl FnOnce(&mut admission::Config, &std::path::Path),
    ) -> Self {
        let origin = Origin::in_memory().await.unwrap();
        for (seed, path) in [(1, "/live/a.ts"), (2, "/live/b.ts"), (3, "/secret/a.ts")] {
            origin.put(path, bytes(seed, 200_000).into());
        }
        let directory = TempDir::new().unwrap();
        let keys = directory.path().join("keys.json");
        std::fs::write(&keys, mint::keys().to_string()).unwrap();
        let mut config = config::Config::default();
        config.endpoint.listen = vec![listen];
        config.device.cpu_threads = "2".parse().unwrap();
        for name in ["live", "secret"] {
            let settings = stream::Config {
                origin: Some(format!("{}{name}/", origin.url()).into()),
                ..stream::Config::default()
            };
            config.stream.insert(name.into(), settings);
        }
        config.admission.keys = Some(keys.to_str().unwrap().into());
        config.admission.leeway = Duration::ZERO;
        config.admission.grace = Duration::from_millis(500);
        rules(&mut config.admission, directory.path());
        let identity = ServerIdentity::ephemeral().unwrap();
        let trust = Trust::Fingerprint(identity.fingerprint());
        let registry = Registry::new();
        let server = Server::start(config.clone(), identity, &registry, Readiness::new())
            .await
            .unwrap();
        Self {
            origin,
            server,
            config,
            trust,
            directory,
            registry,
        }
    }

    /// The address for visitors from here.
    pub(crate) fn address(&self) -> SocketAddr {
        SocketAddr::new(HERE, self.server.addresses()[0].port())
    }

    pub(crate) fn keys_file(&self) -> PathBuf {
        self.directory.path().join("keys.json")
    }

    pub(crate) fn client_config(&self) -> peer::Config {
        let at = self.address();
        let config = peer::Config::new(
            peer::Server {
                host: at.ip().to_string(),
                port: at.port(),
                fingerprint: None,
            },
            self.trust,
        );
        peer::Config {
            answer_timeout: PATIENCE,
            ..config
        }
    }

    pub(crate) async fn client(&self, token: &str) -> Client {
        let token = Some(peer::TokenSource::fixed(token).unwrap());
        Client::connect(peer::Config {
            token,
            ..self.client_config()
        })
        .await
        .unwrap()
    }

    pub(crate) async fn visitor(&self) -> Visitor {
        Visitor::connect(self.address(), &self.trust, HERE, None)
            .await
            .unwrap()
    }

    /// A visitor that has shown this token, on a connection of this visit.
    pub(crate) async fn bearer_of(&self, visit: u8, token: &str) -> Visitor {
        let visit = Some(VisitId([visit; 16]));
        let mut visitor = Visitor::connect_as(visit, self.address(), &self.trust, HERE, None)
            .await
            .unwrap();
        visitor
            .send(Message::Auth(Credential::Token(Token(token.to_owned()))))
            .await;
        visitor
    }

    /// A visitor that has shown this token.
    pub(crate) async fn bearer(&self, token: &str) -> Visitor {
        let mut visitor = self.visitor().await;
        visitor
            .send(Message::Auth(Credential::Token(Token(token.to_owned()))))
            .await;
        visitor
    }

    /// The sum of a counter over its series with this label, or over all.
    pub(crate) fn value(&self, name: &str, label: Option<&str>) -> f64 {
        let families = self.registry.gather();
        let family = families
            .iter()
            .find(|family| family.name() == name)
            .expect("the series is there");
        let is_meant = |metric: &&prometheus::proto::Metric| {
            label.is_none_or(|label| metric.get_label().iter().any(|pair| pair.value() == label))
        };
        family
            .get_metric()
            .iter()
            .filter(is_meant)
            .map(|metric| metric.get_counter().get_value())
            .sum()
    }
}

pub(crate) async fn read(client: &Client, path: &str) -> Result<Vec<u8>, peer::Error> {
    tokio::time::timeout(PATIENCE, async {
        client.open(path, None).await?.read_to_end().await
    })
    .await
    .unwrap()
}

/// A connection that has exchanged HELLOs.
pub(crate) struct Visitor {
    pub(crate) connection: Connection,
    _endpoint: Endpoint,
    send: SendStream,
    receive: RecvStream,
    reader: Reader,
    next: u64,
}

impl Visitor {
    pub(crate) async fn connect(
        server: SocketAddr,
        trust: &Trust,
        from: IpAddr,
        own: Option<&ClientPair>,
    ) -> Result<Self, ConnectionError> {
        Self::connect_as(None, server, trust, from, own).await
    }

    /// The same, as a connection of this visit.
    pub(crate) async fn connect_as(
        visit: Option<VisitId>,
        server: SocketAddr,
        trust: &Trust,
        from: IpAddr,
        own: Option<&ClientPair>,
    ) -> Result<Self, ConnectionError> {
        let (endpoint, connection) = dial(server, trust, from, own).await?;
        let (mut send, receive) = connection.open_bi().await?;
        let hello = Hello {
            agent: "visitor".to_owned(),
            visit,
            ..Hello::defaults()
        };
        send.write_all(&Message::Hello(hello).to_frame())
            .await
            .map_err(|_| connection.close_reason().unwrap())?;
        let mut visitor = Self {
            connection,
            _endpoint: endpoint,
            send,
            receive,
            reader: Reader::new(),
            next: 0,
        };
        match visitor.hear().await {
            Ok(Message::Hello(_)) => Ok(visitor),
            Ok(other) => panic!("{other:?} in place of HELLO"),
            Err(error) => Err(error),
        }
    }

    pub(crate) async fn send(&mut self, message: Message) {
        // If the server has closed, `hear` notices.
        let _ = self.send.write_all(&message.to_frame()).await;
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

    /// The answer to a GET, skipping GRANT and REJECT. Its request number is set to 0, so that
    /// answers can be compared.
    pub(crate) async fn get(
        &mut self,
        path: &str,
    ) -> Result<Result<Meta, RequestError>, ConnectionError> {
        self.next += 1;
        let request = self.next;
        self.send(Message::Get(Get {
            request,
            path: path.to_owned(),
            offset: 0,
            length: None,
            held_only: false,
        }))
        .await;
        loop {
            match self.hear().await? {
                Message::Meta(meta) if meta.request == request => {
                    return Ok(Ok(Meta { request: 0, ..meta }));
                }
                Message::Error(error) if error.request == request => {
                    return Ok(Err(RequestError {
                        request: 0,
                        ..error
                    }));
                }
                Message::Grant { .. } | Message::Reject { .. } => {}
                other => panic!("{other:?} in place of an answer"),
            }
        }
    }

    /// Requests all blocks of a segment's first generation, on a stream.
    pub(crate) async fn request(&mut self, alias: u16, segment: SegmentId, credit: u32) {
        let accept = Accept {
            coded: true,
            systematic: false,
            datagrams: false,
            recoded: false,
        };
        let request = Request {
            alias,
            segment,
            generation: 0,
            deadline_ms: 60_000,
            credit,
            accept,
            ranges: Vec::new(),
            meant: Meant::LastNamed,
        };
        self.send(Message::Request(request)).await;
    }

    /// The code that the connection is closed with.
    pub(crate) async fn close_code(&self) -> CloseCode {
        match tokio::time::timeout(PATIENCE, self.connection.closed())
            .await
            .expect("a closed connection")
        {
            ConnectionError::ApplicationClosed(close) => {
                CloseCode::from_quic(close.error_code.into_inner()).unwrap()
            }
            other => panic!("closed by {other}"),
        }
    }
}

/// A connection after its handshake.
pub(crate) async fn dial(
    server: SocketAddr,
    trust: &Trust,
    from: IpAddr,
    own: Option<&ClientPair>,
) -> Result<(Endpoint, Connection), ConnectionError> {
    let endpoint = Endpoint::client(SocketAddr::new(from, 0)).unwrap();
    let config = quinn::ClientConfig::new(Arc::new(tls::client_config(trust, own).unwrap()));
    let connection = endpoint
        .connect_with(config, server, "localhost")
        .unwrap()
        .await?;
    Ok((endpoint, connection))
}

/// The segment that a META names.
pub(crate) fn segment(meta: &Meta) -> SegmentId {
    assert!(matches!(meta.delivery, Delivery::Coded(_)), "{meta:?}");
    meta.id
}

/// Reads a stream of blocks to its end, and counts its bytes.
pub(crate) async fn drain(mut stream: RecvStream) -> usize {
    let mut count = 0;
    while let Ok(Some(chunk)) = stream.read_chunk(65_536, true).await {
        count += Bytes::len(&chunk.bytes);
    }
    count
}

/// Whether a connection was refused before it was established.
pub(crate) fn is_refused(error: &ConnectionError) -> bool {
    let code = quinn::TransportErrorCode::CONNECTION_REFUSED;
    matches!(error, ConnectionError::ConnectionClosed(close) if close.error_code == code)
}

/// Whether an application close has one of our codes.
pub(crate) fn is_ours(error: &ConnectionError) -> bool {
    matches!(
        error,
        ConnectionError::ApplicationClosed(close)
            if close.error_code.into_inner() >= u64::from(CODE_BASE)
    )
}
