//! Fetches one object into memory, as an application that embeds the client does.
//!
//! ```text
//! cargo run --release -p ncpeer --example fetch -- \
//!     ncs://127.0.0.1:4443#FINGERPRINT /film/master.m3u8
//! ```
//!
//! A server prints its address with the fingerprint when it starts. Without a fingerprint the
//! certificate has to come from an authority that this system trusts.

use std::error::Error;

use ncpeer::{Client, Config, Server};
use ncs_net::tls::Trust;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let (Some(server), Some(path)) = (arguments.next(), arguments.next()) else {
        return Err("usage: fetch ncs://HOST[:PORT][#FINGERPRINT] /STREAM/OBJECT".into());
    };
    let server: Server = server.parse()?;
    let client = Client::connect(Config::new(server, Trust::System)).await?;

    // Bytes arrive in order, each part as soon as it is proven against the id of its segment.
    let mut object = client.open(&path, None).await?;
    let mut length = 0;
    while let Some(bytes) = object.next().await {
        length += bytes?.len();
    }

    let stats = client.stats().borrow().clone();
    let (received, redundant) = (stats.blocks_received, stats.blocks_useless);
    println!("{length} bytes in {received} blocks, {redundant} of them redundant");
    client.close().await;
    Ok(())
}
