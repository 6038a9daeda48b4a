//! Stands between a client and a server, and writes down what they say to each other.
//!
//! Both have a QUIC connection with the tap, so it sees what QUIC carries and not packets. It shows
//! the certificate of the server.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use ncserverd::tls::{self, Fingerprint, ServerIdentity, Trust};
use quinn::{
    Connection, ConnectionError, Endpoint, ReadError, RecvStream, SendStream, TransportConfig,
};

use crate::record::{Conversation, Sent, Side, frame};

/// What is lost between a server and its client, and not written down.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Loss {
    Nothing,
    /// The first two datagrams of the first two requests.
    Some,
    /// All datagrams once [`Notes::lose`] was called.
    Later,
    /// All blocks.
    Blocks,
}

/// What all taps of a scene have heard.
#[derive(Debug, Clone, Default)]
pub(crate) struct Notes {
    conversations: Arc<Mutex<Vec<Conversation>>>,
    loses: Arc<AtomicBool>,
}

impl Notes {
    pub(crate) fn conversations(&self) -> Vec<Conversation> {
        self.conversations.lock().unwrap().clone()
    }

    /// From now on a path with [`Loss::Later`] loses datagrams.
    pub(crate) fn lose(&self) {
        self.loses.store(true, Ordering::Relaxed);
    }

    fn begin(&self, server: char) -> Page {
        let mut all = self.conversations.lock().unwrap();
        all.push(Conversation {
            server,
            events: Vec::new(),
        });
        Page {
            notes: self.clone(),
            number: all.len() - 1,
        }
    }
}

/// Where one connection is written down.
#[derive(Debug, Clone)]
struct Page {
    notes: Notes,
    number: usize,
}

impl Page {
    fn note(&self, side: Side, sent: Sent) {
        self.notes.conversations.lock().unwrap()[self.number]
            .events
            .push((side, sent));
    }
}

/// Listens at this address for clients of a server, which is named by a letter.
pub(crate) fn start(
    at: SocketAddr,
    (letter, server, pin): (char, SocketAddr, Fingerprint),
    identity: &ServerIdentity,
    loss: Loss,
    notes: &Notes,
) {
    let quic = quinn::ServerConfig::with_crypto(Arc::new(identity.quic().unwrap()));
    let incoming = Endpoint::server(quic, at).unwrap();
    let notes = notes.clone();
    tokio::spawn(async move {
        while let Some(connecting) = incoming.accept().await {
            let notes = notes.clone();
            tokio::spawn(async move {
                let Ok(client) = connecting.await else { return };
                let outgoing = Endpoint::client((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
                let trust = Trust::Fingerprint(pin);
                let crypto = tls::client_config(&trust, None).unwrap();
                let mut config = quinn::ClientConfig::new(Arc::new(crypto));
                let mut transport = TransportConfig::default();
                transport.max_concurrent_uni_streams(512_u32.into());
                config.transport_config(Arc::new(transport));
                let server = outgoing.connect_with(config, server, "localhost").unwrap();
                let Ok(server) = server.await else { return };
                listen(&client, &server, &notes.begin(letter), loss).await;
                outgoing.wait_idle().await;
            });
        }
    });
}

/// Passes everything on until one side has gone.
async fn listen(client: &Connection, server: &Connection, page: &Page, loss: Loss) {
    let pass = async {
        let (mut answers, mut questions) = client.accept_bi().await.unwrap();
        let (mut to_server, mut from_server) = server.open_bi().await.unwrap();
        tokio::join!(
            frames(&mut questions, &mut to_server, Side::Client, page),
            frames(&mut from_server, &mut answers, Side::Server, page),
            datagrams(server, client, page, loss),
            streams(server, client, page, loss),
        )
    };
    tokio::select! {
        biased;
        end = client.closed() => close(&end, server, Side::Client, page),
        end = server.closed() => close(&end, client, Side::Server, page),
        _ = pass => {}
    }
    // What has come is written down, and the end goes on.
    for end in [client.closed(), server.closed()] {
        let _ = tokio::time::timeout(std::time::Duration::from_secs(2), end).await;
    }
}

fn close(end: &ConnectionError, other: &Connection, side: Side, page: &Page) {
    if let ConnectionError::ApplicationClosed(end) = end {
        let code = end.error_code.into_inner();
        page.note(side, Sent::Close(code, end.reason.to_vec()));
        other.close(end.error_code, &end.reason);
    } else {
        other.close(0_u32.into(), b"");
    }
}

/// Passes the frames of one direction of the control stream on, each as it is complete.
async fn frames(from: &mut RecvStream, to: &mut SendStream, side: Side, page: &Page) {
    let mut held = Vec::new();
    while let Ok(Some(chunk)) = from.read_chunk(65_536, true).await {
        held.extend_from_slice(&chunk.bytes);
        while let Some((_, _, length)) = frame(&held) {
            let rest = held.split_off(length);
            page.note(side, Sent::Control(held.clone()));
            let _ = to.write_all(&held).await;
            held = rest;
        }
    }
    // The end of the connection follows.
    std::future::pending::<()>().await;
}

async fn datagrams(server: &Connection, client: &Connection, page: &Page, loss: Loss) {
    let mut aliases = Vec::new();
    while let Ok(datagram) = server.read_datagram().await {
        let alias = u16::from_be_bytes([datagram[2], datagram[3]]);
        let seq = u16::from_be_bytes([datagram[4], datagram[5]]);
        if !aliases.contains(&alias) {
            aliases.push(alias);
        }
        let is_lost = match loss {
            Loss::Nothing => false,
            Loss::Some => aliases.iter().take(2).any(|early| *early == alias) && seq < 2,
            Loss::Later => page.notes.loses.load(Ordering::Relaxed),
            Loss::Blocks => true,
        };
        if !is_lost {
            page.note(Side::Server, Sent::Datagram(datagram.to_vec()));
            let _ = client.send_datagram_wait(Bytes::clone(&datagram)).await;
        }
    }
}

async fn streams(server: &Connection, client: &Connection, page: &Page, loss: Loss) {
    let mut number = 0;
    while let Ok(from) = server.accept_uni().await {
        let to = client.open_uni().await;
        if let (Ok(to), true) = (to, loss != Loss::Blocks) {
            tokio::spawn(stream(number, from, to, page.clone()));
        }
        number += 1;
    }
}

async fn stream(number: u64, mut from: RecvStream, mut to: SendStream, page: Page) {
    loop {
        let chunk = tokio::select! {
            chunk = from.read_chunk(65_536, true) => chunk,
            Ok(Some(code)) = to.stopped() => {
                page.note(Side::Client, Sent::Stop(number, code.into_inner()));
                let _ = from.stop(code);
                return;
            }
        };
        match chunk {
            Ok(Some(chunk)) => {
                page.note(Side::Server, Sent::Stream(number, chunk.bytes.to_vec()));
                let _ = to.write_chunk(chunk.bytes).await;
            }
            Ok(None) => {
                page.note(Side::Server, Sent::End(number));
                let _ = to.finish();
                return;
            }
            Err(ReadError::Reset(code)) => {
                page.note(Side::Server, Sent::Reset(number, code.into_inner()));
                let _ = to.reset(code);
                return;
            }
            Err(_) => return,
        }
    }
}
