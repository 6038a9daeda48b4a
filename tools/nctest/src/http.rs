//! Pages of programs on this machine.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// The body of an answer.
pub fn get(server: SocketAddr, path: &str) -> io::Result<Vec<u8>> {
    let mut stream = TcpStream::connect(server)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    // So that the answer is its bytes as they are and ends with the connection.
    stream.write_all(format!("GET {path} HTTP/1.0\r\nHost: {server}\r\n\r\n").as_bytes())?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    let head = answer
        .windows(4)
        .position(|window| window == b"\r\n\r\n")
        .ok_or(io::ErrorKind::InvalidData)?;
    let is_right = answer.starts_with(b"HTTP/1.0 200") || answer.starts_with(b"HTTP/1.1 200");
    if !is_right {
        return Err(io::ErrorKind::NotFound.into());
    }
    Ok(answer.split_off(head + 4))
}
