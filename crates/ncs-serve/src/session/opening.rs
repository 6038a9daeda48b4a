//! The opening of a session: the peer's control stream, in either binding of the protocol.

use ncs_net::web::{self, Binding, Origins};
use ncs_proto::wire::Violation;
use quinn::{Connection, RecvStream, SendStream};
use tokio::time::timeout;

use super::end::End;
use super::{Config, Metrics};

/// What a peer has opened.
pub(super) struct Opening {
    /// How it has come.
    pub(super) binding: Binding,
    /// Its control stream.
    pub(super) send: SendStream,
    pub(super) receive: RecvStream,
    /// The token in a page's address, which counts as if AUTH had brought it.
    pub(super) token: Option<String>,
    /// The page's end of its session.
    pub(super) ending: Option<web::Ending>,
}

/// Waits for the control stream. Also returns the session of WebTransport, if the peer is a page.
pub(super) async fn open(
    connection: &Connection,
    origins: &Origins,
    config: &Config,
    metrics: &Metrics,
) -> Result<(Opening, Option<web::Session>), End> {
    let binding = Binding::of(connection);
    let opened = timeout(config.hello_timeout, async {
        match binding {
            Binding::Quic => of_peer(connection).await,
            Binding::Web => of_page(connection, origins, metrics).await,
        }
    });
    opened
        .await
        .unwrap_or_else(|_| Err(Violation::Timeout("control stream").into()))
}

async fn of_peer(connection: &Connection) -> Result<(Opening, Option<web::Session>), End> {
    let (send, receive) = connection.accept_bi().await?;
    let opening = Opening {
        binding: Binding::Quic,
        send,
        receive,
        token: None,
        ending: None,
    };
    Ok((opening, None))
}

async fn of_page(
    connection: &Connection,
    origins: &Origins,
    metrics: &Metrics,
) -> Result<(Opening, Option<web::Session>), End> {
    let (opened, ending) = match web::accept(connection, origins).await {
        Ok(accepted) => accepted,
        Err(error) => {
            metrics.refuse_page(&error);
            tracing::debug!(%error, "no session of WebTransport");
            web::refuse(connection, &error);
            return Err(End::Connection);
        }
    };
    metrics.pages.inc();
    let web::Opened {
        session,
        send,
        receive,
        token,
    } = opened;
    let opening = Opening {
        binding: Binding::Web,
        send,
        receive,
        token,
        ending: Some(ending),
    };
    Ok((opening, Some(session)))
}
