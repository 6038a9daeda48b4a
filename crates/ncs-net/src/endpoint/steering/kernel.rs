//! The system call that gives the kernel a program. No safe crate of ours has this option.

#![allow(unsafe_code)]

use std::io;
use std::mem::size_of_val;
use std::os::fd::AsRawFd;

use socket2::SockRef;

use super::Instruction;

/// Attaches the program to all sockets that share this one's address.
pub(in crate::endpoint) fn attach(socket: &SockRef<'_>, program: &[Instruction]) -> io::Result<()> {
    let mut filter: Vec<libc::sock_filter> = program.iter().map(filter).collect();
    let program = libc::sock_fprog {
        len: u16::try_from(filter.len()).map_err(io::Error::other)?,
        filter: filter.as_mut_ptr(),
    };
    let length = libc::socklen_t::try_from(size_of_val(&program)).map_err(io::Error::other)?;
    // SAFETY: the kernel reads `length` bytes at `program`, which is its size, and `len`
    // instructions at `filter`. Both live until the call returns, and the kernel keeps a copy. It
    // checks the program itself, and the descriptor is open as long as `socket` is borrowed.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ATTACH_REUSEPORT_CBPF,
            (&raw const program).cast(),
            length,
        )
    };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

fn filter(instruction: &Instruction) -> libc::sock_filter {
    libc::sock_filter {
        code: instruction.code,
        jt: instruction.then,
        jf: instruction.otherwise,
        k: instruction.value,
    }
}
