//! Messages with open files between two processes of this machine, over a Unix socket.
//!
//! Each message is its length (4 bytes, little endian) and JSON of at most [`MESSAGE_MAX`] bytes,
//! with at most [`FILES_MAX`] descriptors on its first byte. Both sides talk only to processes of
//! their own user, or of root.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::Mode;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, Interest};
use tokio::net::{UnixListener, UnixStream};

use super::Error;

/// The longest message, in bytes.
const MESSAGE_MAX: usize = 16 << 10;
/// The most descriptors of a message: the sockets of an address.
const FILES_MAX: usize = 128;

/// One end of a conversation.
#[derive(Debug)]
pub(super) struct Channel {
    stream: UnixStream,
}

impl Channel {
    /// Connects to the process that listens at a path. None if there is none.
    pub(super) async fn connect(path: &Path) -> Result<Option<Self>, Error> {
        match UnixStream::connect(path).await {
            Ok(stream) => Self::new(stream).map(Some),
            Err(error) => match error.kind() {
                // Nobody has ever listened there, or who did has died.
                io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => Ok(None),
                _ => Err(Error::Path(path.to_owned(), error)),
            },
        }
    }

    fn new(stream: UnixStream) -> Result<Self, Error> {
        let user = stream.peer_cred()?.uid();
        if user != rustix::process::geteuid().as_raw() && user != 0 {
            return Err(Error::Stranger(user));
        }
        Ok(Self { stream })
    }

    /// Sends a message.
    pub(super) async fn send(
        &mut self,
        message: &impl Serialize,
        files: &[BorrowedFd<'_>],
    ) -> Result<(), Error> {
        let message = serde_json::to_vec(message).map_err(io::Error::from)?;
        let length = u32::try_from(message.len()).map_err(io::Error::other)?;
        let bytes = [&length.to_le_bytes()[..], &message].concat();
        let send = || {
            let mut space = [MaybeUninit::uninit(); SPACE];
            let mut ancillary = SendAncillaryBuffer::new(&mut space);
            if !files.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(files)) {
                return Err(io::Error::other("too many descriptors for one message"));
            }
            let (bytes, flags) = ([io::IoSlice::new(&bytes)], SendFlags::NOSIGNAL);
            Ok(rustix::net::sendmsg(
                &self.stream,
                &bytes,
                &mut ancillary,
                flags,
            )?)
        };
        let sent = self.stream.async_io(Interest::WRITABLE, send).await?;
        self.stream.write_all(&bytes[sent..]).await?;
        Ok(())
    }

    /// Receives a message and its descriptors.
    pub(super) async fn receive<T: DeserializeOwned>(
        &mut self,
    ) -> Result<(T, Vec<OwnedFd>), Error> {
        let receive = || receive(self.stream.as_fd());
        let (first, files) = self.stream.async_io(Interest::READABLE, receive).await?;
        let Some(first) = first else {
            return Err(Error::Gone);
        };
        let mut length = [first, 0, 0, 0];
        self.stream.read_exact(&mut length[1..]).await?;
        let length = usize::try_from(u32::from_le_bytes(length)).unwrap_or(usize::MAX);
        if length > MESSAGE_MAX {
            return Err(Error::Message);
        }
        let mut message = vec![0; length];
        self.stream.read_exact(&mut message).await?;
        let message = serde_json::from_slice(&message).map_err(|_| Error::Message)?;
        Ok((message, files))
    }

    /// Returns when the other process has closed its end, or says something out of turn.
    pub(super) async fn closed(&self) {
        while self.stream.readable().await.is_ok() {
            match self.stream.try_read(&mut [0]) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                _ => return,
            }
        }
    }
}

/// The first byte of a message, if there is one, and its descriptors.
fn receive(socket: BorrowedFd<'_>) -> io::Result<(Option<u8>, Vec<OwnedFd>)> {
    let mut first = [0];
    let mut space = [MaybeUninit::uninit(); SPACE];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let received = rustix::net::recvmsg(
        socket,
        &mut [io::IoSliceMut::new(&mut first)],
        &mut ancillary,
        RecvFlags::CMSG_CLOEXEC,
    )?;
    let files = ancillary.drain().flat_map(|message| match message {
        RecvAncillaryMessage::ScmRights(files) => files.collect(),
        _ => Vec::new(),
    });
    let files: Vec<OwnedFd> = files.collect();
    if received.flags.contains(ReturnFlags::CTRUNC) {
        return Err(io::Error::other("too many descriptors in one message"));
    }
    Ok(((received.bytes > 0).then_some(first[0]), files))
}

/// Where the next process comes.
#[derive(Debug)]
pub(super) struct Door {
    listener: UnixListener,
    path: PathBuf,
    draft: PathBuf,
}

impl Door {
    /// Listens beside a path, where nobody comes before [`Door::publish`]. What is at the path has
    /// to be a socket, if there is anything.
    pub(super) fn open(path: &Path) -> Result<Self, Error> {
        if is_socket(path) == Some(false) {
            return Err(Error::NoSocket(path.to_owned()));
        }
        let mut draft = path.as_os_str().to_owned();
        draft.push(format!(".{}", std::process::id()));
        let draft = PathBuf::from(draft);
        // Of a process with the same number that has died.
        let _ = std::fs::remove_file(&draft);
        let open = || {
            let listener = UnixListener::bind(&draft)?;
            rustix::fs::chmod(&draft, Mode::RUSR | Mode::WUSR)?;
            io::Result::Ok(listener)
        };
        match open() {
            Ok(listener) => Ok(Self {
                listener,
                path: path.to_owned(),
                draft,
            }),
            Err(error) => {
                let _ = std::fs::remove_file(&draft);
                Err(Error::Path(path.to_owned(), error))
            }
        }
    }

    /// Takes the place of whoever listened at the path: at any moment somebody does.
    pub(super) fn publish(&self) -> Result<(), Error> {
        std::fs::rename(&self.draft, &self.path)
            .map_err(|error| Error::Path(self.path.clone(), error))
    }

    /// The next process that comes.
    pub(super) async fn accept(&self) -> Result<Channel, Error> {
        let (stream, _) = self.listener.accept().await?;
        Channel::new(stream)
    }

    /// Listens again at the path, where the process that had taken over has died.
    pub(super) fn again(&self) -> Result<Self, Error> {
        let door = Self::open(&self.path)?;
        door.publish()?;
        Ok(door)
    }

    /// Nobody is to come any more, and no other process listens at the path.
    pub(super) fn close(&self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Whether a socket is at a path, if anything is.
pub(crate) fn is_socket(path: &Path) -> Option<bool> {
    let found = std::fs::symlink_metadata(path).ok()?;
    Some(found.file_type().is_socket())
}

/// Room for the descriptors of a message.
const SPACE: usize = rustix::cmsg_space!(ScmRights(FILES_MAX));

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::{Read as _, Seek as _, Write as _};
    use std::os::fd::AsFd as _;

    use super::*;

    async fn pair() -> (tempfile::TempDir, Door, Channel, Channel) {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("door");
        assert!(Channel::connect(&path).await.unwrap().is_none());
        let door = Door::open(&path).unwrap();
        assert!(Channel::connect(&path).await.unwrap().is_none(), "not yet");
        door.publish().unwrap();
        let one = Channel::connect(&path).await.unwrap().unwrap();
        let other = door.accept().await.unwrap();
        (place, door, one, other)
    }

    #[tokio::test]
    async fn nothing_but_a_socket_is_replaced() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("precious");
        std::fs::write(&path, "bytes").unwrap();
        let refused = Door::open(&path).map(drop);
        assert!(matches!(refused, Err(Error::NoSocket(named)) if named == path));
        assert_eq!(std::fs::read(&path).unwrap(), b"bytes");
        assert_eq!(std::fs::read_dir(place.path()).unwrap().count(), 1);
    }

    #[tokio::test]
    async fn a_door_is_opened_again_after_another_process_was_there() {
        let (_place, door, _one, other) = pair().await;
        let next = Door::open(&door.path).unwrap();
        next.publish().unwrap();
        drop((next, other));
        assert!(Channel::connect(&door.path).await.unwrap().is_none());
        let again = door.again().unwrap();
        assert!(Channel::connect(&door.path).await.unwrap().is_some());
        again.accept().await.unwrap();
    }

    #[tokio::test]
    async fn messages_bring_open_files() {
        let (_place, _door, mut one, mut other) = pair().await;
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"bytes").unwrap();
        let files = vec![file.as_fd(); FILES_MAX];
        one.send(&vec!["a", "b"], &files).await.unwrap();
        one.send(&7, &[]).await.unwrap();
        let (text, files): (Vec<String>, _) = other.receive().await.unwrap();
        assert_eq!(
            (text, files.len()),
            (vec!["a".into(), "b".into()], FILES_MAX)
        );
        let mut read = String::new();
        let mut file = File::from(files.into_iter().next_back().unwrap());
        file.rewind().unwrap();
        file.read_to_string(&mut read).unwrap();
        assert_eq!(read, "bytes");
        let (number, files): (u32, _) = other.receive().await.unwrap();
        assert_eq!((number, files.len()), (7, 0));
        drop(one);
        let gone = other.receive::<u32>().await;
        assert!(matches!(gone, Err(Error::Gone)), "{gone:?}");
        other.closed().await;
    }

    #[tokio::test]
    async fn what_is_no_message_is_refused() {
        let (_place, _door, mut one, mut other) = pair().await;
        one.send(&"text", &[]).await.unwrap();
        let wrong = other.receive::<u32>().await;
        assert!(matches!(wrong, Err(Error::Message)), "{wrong:?}");
        one.send(&"x".repeat(MESSAGE_MAX), &[]).await.unwrap();
        let long = other.receive::<String>().await;
        assert!(matches!(long, Err(Error::Message)), "{long:?}");
        let file = tempfile::tempfile().unwrap();
        let files = vec![file.as_fd(); 2 * FILES_MAX];
        assert!(one.send(&1, &files).await.is_err());
    }

    #[tokio::test]
    async fn the_last_to_listen_is_the_one_that_is_met() {
        let (place, first, ..) = pair().await;
        let path = place.path().join("door");
        let second = Door::open(&path).unwrap();
        second.publish().unwrap();
        let _one = Channel::connect(&path).await.unwrap().unwrap();
        second.accept().await.unwrap();
        drop(first);
        assert!(Channel::connect(&path).await.unwrap().is_some());
        drop(second);
        // It has died, and its path is left.
        assert!(path.exists() && Channel::connect(&path).await.unwrap().is_none());
        let third = Door::open(&path).unwrap();
        third.publish().unwrap();
        third.close();
        assert!(!path.exists());
        let long = place.path().join("x".repeat(200));
        let refused = Door::open(&long).unwrap_err().to_string();
        assert!(refused.contains(&"x".repeat(200)), "{refused}");
    }
}
