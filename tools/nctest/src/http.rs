//! Pages of programs on this machine.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// The body of an answer with code 200.
pub fn get(server: SocketAddr, path: &str) -> io::Result<Vec<u8>> {
    match answer(server, path)? {
        (200, body) => Ok(body),
        _ => Err(io::ErrorKind::NotFound.into()),
    }
}

/// The code of an answer, and its body.
pub fn answer(server: SocketAddr, path: &str) -> io::Result<(u16, Vec<u8>)> {
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
    let status = String::from_utf8_lossy(&answer[..head]);
    let code = status
        .split_once(' ')
        .and_then(|(_, rest)| rest.get(..3)?.parse().ok());
    let code = code.ok_or(io::ErrorKind::InvalidData)?;
    Ok((code, answer.split_off(head + 4)))
}
