//! A second session takes a connection over from one whose requests hang.

use crate::fixture::{Fixture, HUNG, Reaped, SOON};
use crate::memory::Memory;
use crate::waiting::eventually;
use copperfs_fuse::{InHandRecord, Inherited, Ino, MountOptions, take_over};
use parking_lot::Mutex;
use std::io::Read;
use std::ops::Range;
use std::process::{Command, Stdio};
use std::sync::Arc;

/// Keeps the last range.
#[derive(Debug, Default)]
struct Last(Mutex<Range<u64>>);

impl InHandRecord for Last {
    fn note(&self, numbers: Range<u64>) {
        *self.0.lock() = numbers;
    }
}

/// Fills a memory. Its name `name` and the listing of `directory` hang, if they shall.
fn fill(memory: &Memory, hang: bool) {
    memory.file(Ino::ROOT, "other", "bytes");
    let directory = memory.directory(Ino::ROOT, "directory");
    memory.change(directory, |node| node.hang_readdir = hang);
    if hang {
        memory.state().hanging_names.insert("name".into());
    }
}

/// Where the kernel does not send requests again, those in hand fail with EIO at once, and no others.
#[test]
fn requests_in_hand_fail_where_the_kernel_does_not_send_them_again() {
    let last = Arc::new(Last::default());
    let in_hand = Arc::clone(&last) as Arc<dyn InHandRecord>;
    let fixture = Fixture::with(
        |options| options.in_hand = Some(in_hand),
        |memory| fill(memory, true),
    );
    let start = |program: &[&str]| {
        let mut command = Command::new(program[0]);
        command.args(&program[1..]).current_dir(fixture.root());
        command
            .env("LC_ALL", "C")
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        Reaped::spawn(&mut command)
    };
    let mut waiting = [start(&["stat", "name"]), start(&["ls", "directory"])];
    eventually(SOON, "the requests hang", || {
        fixture.memory.state().hung >= 2
    });
    // From now on both sessions answer.
    fixture.memory.state().hanging_names.clear();
    let second = Memory::new();
    fill(&second, false);
    let mut options = MountOptions::new(fixture.root());
    options.resend = false;
    let inherited = Inherited {
        connection: fixture.mount.connection_file().unwrap(),
        handshake: fixture.mount.handshake().clone(),
        in_hand: last.0.lock().clone(),
        opens: Vec::new(),
    };
    let successor = take_over(second, options, fixture.runtime.handle(), &inherited).unwrap();
    for child in &mut waiting {
        let status = child
            .ends_within(HUNG)
            .expect("a request in hand has an answer");
        let mut said = String::new();
        child
            .0
            .stderr
            .take()
            .unwrap()
            .read_to_string(&mut said)
            .unwrap();
        assert!(
            !status.success() && said.contains("Input/output error"),
            "{said}"
        );
    }
    assert_eq!(std::fs::read(fixture.path("other")).unwrap(), b"bytes");
    drop(successor);
}
