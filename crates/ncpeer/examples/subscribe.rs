//! Follows a live stream: prints each new segment of it, and fetches it.
//!
//! ```text
//! cargo run --release -p ncpeer --example subscribe -- ncs://127.0.0.1:4443#FINGERPRINT live
//! ```

use std::error::Error;
use std::time::Instant;

use ncpeer::{Client, Config, Server};
use ncs_net::tls::Trust;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let (Some(server), Some(stream)) = (arguments.next(), arguments.next()) else {
        return Err("usage: subscribe ncs://HOST[:PORT][#FINGERPRINT] STREAM".into());
    };
    let server: Server = server.parse()?;
    let client = Client::connect(Config::new(server, Trust::System)).await?;

    // The server announces a segment when it is complete at the origin. The channel ends with the
    // stream.
    let mut segments = client.subscribe(&stream).await?;
    while let Some((path, _)) = segments.recv().await {
        let begun = Instant::now();
        let bytes = client.open(&path, None).await?.read_to_end().await?;
        println!("{path}: {} bytes in {:?}", bytes.len(), begun.elapsed());
    }
    client.close().await;
    Ok(())
}
