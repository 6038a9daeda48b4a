//! A web page's side of WebTransport, for tests that also break its rules.

use std::time::Duration;

use ncs_proto::wire::CloseCode;
use quinn::{Connection, RecvStream, SendStream};
pub use web_transport_proto as proto;

use crate::program::PATIENCE;

/// A session that a page has begun.
pub struct Page {
    /// The connection under it.
    pub connection: Connection,
    /// The CONNECT request.
    pub send: SendStream,
    receive: RecvStream,
    _settings: (SendStream, RecvStream),
}

/// The response to a CONNECT request that is not a success.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused(pub String);

impl Page {
    /// Begins a session at this URL, `https://host/path?query`, as a page of this origin.
    pub async fn open(
        connection: &Connection,
        url: &str,
        origin: Option<&str>,
    ) -> Result<Self, Refused> {
        let settings = send_settings(connection).await;
        let (mut send, mut receive) = connection.open_bi().await.map_err(refused)?;
        let mut bytes = Vec::new();
        request(url, origin).encode(&mut bytes).map_err(refused)?;
        send.write_all(&bytes).await.map_err(refused)?;
        tokio::time::timeout(PATIENCE, proto::ConnectResponse::read(&mut receive))
            .await
            .expect("an answer in time")
            .map_err(refused)?;
        // The server's own SETTINGS come first.
        let theirs = connection.accept_uni().await.map_err(refused)?;
        Ok(Self {
            connection: connection.clone(),
            send,
            receive,
            _settings: (settings, theirs),
        })
    }

    /// Opens the control stream.
    pub async fn control(&self) -> Result<(SendStream, RecvStream), quinn::ConnectionError> {
        let (mut send, receive) = self.connection.open_bi().await?;
        // If the server has closed, reading notices.
        let _ = send.write_all(&[0x40, 0x41, 0x00]).await;
        Ok((send, receive))
    }

    /// Ends the session as a page that is closed.
    pub async fn leave(mut self) -> Connection {
        let capsule = proto::Capsule::CloseWebTransportSession {
            code: 0,
            reason: String::new(),
        };
        self.send_capsule(&capsule).await;
        let _ = self.send.finish();
        self.connection.clone()
    }

    /// Sends a capsule.
    pub async fn send_capsule(&mut self, capsule: &proto::Capsule) {
        let mut body = Vec::new();
        capsule.encode(&mut body);
        let length = u8::try_from(body.len()).expect("a short capsule");
        assert!(length < 64, "its length takes one byte");
        let mut frame = vec![0x00, length];
        frame.extend(body);
        let _ = self.send.write_all(&frame).await;
    }

    /// How the server has ended the session, if it has said that in this time.
    pub async fn close_code(&mut self, within: Duration) -> Option<CloseCode> {
        let mut capsules = proto::Http3CapsuleReader::new(&mut self.receive);
        let ended = tokio::time::timeout(within, async {
            while let Ok(Some(capsule)) = capsules.read().await {
                if let proto::Capsule::CloseWebTransportSession { code, .. } = capsule {
                    return Some(code);
                }
            }
            None
        });
        let code = ended.await.ok()??;
        // The server waits for this, as browsers do it.
        self.connection.close(0x100_u32.into(), b"");
        CloseCode::from_quic(code.into())
    }
}

/// The CONNECT request of a page.
pub fn request(url: &str, origin: Option<&str>) -> proto::ConnectRequest {
    let url: url::Url = url.parse().expect("a URL");
    let request = proto::ConnectRequest::new(url);
    match origin {
        None => request,
        Some(origin) => {
            let value = origin.parse().expect("a header");
            request.with_header(proto::http::header::ORIGIN, value)
        }
    }
}

/// Opens HTTP/3's control stream with the SETTINGS of a browser.
pub async fn send_settings(connection: &Connection) -> SendStream {
    let mut settings = proto::Settings::default();
    settings.enable_webtransport(1);
    let mut stream = connection.open_uni().await.expect("room for a stream");
    // If the server has closed, reading notices.
    let _ = settings.write(&mut stream).await;
    stream
}

fn refused(error: impl std::fmt::Display) -> Refused {
    Refused(error.to_string())
}
