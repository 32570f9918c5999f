//! A process that waits for an answer can be killed.

use crate::fixture::{Fixture, HUNG, Reaped, SOON};
use crate::waiting::eventually;
use copperfs_fuse::{Ino, Op};
use rustix::process::{Pid, Signal, kill_process};
use std::process::{Command, Stdio};
use std::time::Duration;

fn hanging() -> Fixture {
    Fixture::new(|memory| {
        memory.state().hanging_names.insert("name".into());
        let file = memory.file(Ino::ROOT, "file", vec![1; 1 << 20]);
        memory.change(file, |node| node.hang_read = true);
        let directory = memory.directory(Ino::ROOT, "directory");
        memory.change(directory, |node| node.hang_readdir = true);
    })
}

/// Runs `program`, waits until its request hangs, sends the signal, and expects the program to end.
fn freed_by(signal: Signal, op: Op, program: &str) {
    let fixture = hanging();
    let mut child = Reaped::spawn(
        Command::new("sh")
            .arg("-c")
            .arg(format!("exec {program}"))
            .current_dir(fixture.root())
            .stdout(Stdio::null())
            .stderr(Stdio::null()),
    );
    eventually(SOON, "the request hangs", || {
        fixture.memory.state().hung > 0
    });
    assert!(
        child.ends_within(Duration::from_millis(150)).is_none(),
        "it waits"
    );
    let pid = Pid::from_child(&child.0);
    kill_process(pid, signal).unwrap();
    let status = child.ends_within(HUNG);
    assert!(status.is_some(), "{program} is not freed by {signal:?}");
    // A buffered read waits for its page killably in the kernel, so it ends without the daemon.
    let checked = op != Op::Read || program.contains("direct");
    if checked {
        assert!(fixture.mount.counters().interrupted.get() >= 1);
    }
}

#[test]
fn sigkill_frees_a_lookup() {
    freed_by(Signal::KILL, Op::Lookup, "stat name");
}

#[test]
fn ctrl_c_frees_a_lookup() {
    freed_by(Signal::INT, Op::Lookup, "stat name");
}

#[test]
fn sigkill_frees_a_read() {
    freed_by(Signal::KILL, Op::Read, "cat file");
}

#[test]
fn ctrl_c_frees_a_read() {
    freed_by(Signal::INT, Op::Read, "cat file");
}

#[test]
fn sigkill_frees_a_direct_read() {
    freed_by(Signal::KILL, Op::Read, "dd if=file iflag=direct bs=64k");
}

#[test]
fn sigkill_frees_a_listing() {
    freed_by(Signal::KILL, Op::Readdirplus, "ls directory");
}

#[test]
fn ctrl_c_frees_a_listing() {
    freed_by(Signal::INT, Op::Readdirplus, "ls directory");
}

#[test]
fn a_thread_of_a_killed_program_is_freed() {
    freed_by(
        Signal::TERM,
        Op::Lookup,
        "python3 -c 'import os, threading, time; threading.Thread(target=os.stat, args=(\"name\",)).start(); time.sleep(60)'",
    );
}

#[test]
fn all_readers_that_wait_for_one_name_are_freed() {
    let fixture = hanging();
    let path = fixture.path("name");
    let mut children: Vec<_> = (0..16)
        .map(|_| Reaped::spawn(Command::new("stat").arg(&path).stderr(Stdio::null())))
        .collect();
    eventually(SOON, "one of them hangs", || {
        fixture.memory.state().hung > 0
    });
    // The others wait in the kernel for the first one, and there is no event for that.
    crate::fixture::pause(300);
    for child in &children {
        kill_process(Pid::from_child(&child.0), Signal::KILL).unwrap();
    }
    for child in &mut children {
        assert!(child.ends_within(HUNG).is_some());
    }
}

#[test]
fn a_living_reader_keeps_waiting_and_gets_its_answer() {
    let fixture = hanging();
    let path = fixture.path("name");
    let reader = std::thread::spawn(move || std::fs::metadata(path).map_err(|e| e.raw_os_error()));
    // Leaves time for an answer or a signal, which would be wrong.
    crate::fixture::pause(600);
    assert!(!reader.is_finished());
    fixture.memory.release();
    assert_eq!(reader.join().unwrap().unwrap_err(), Some(5));
    assert_eq!(fixture.mount.counters().interrupted.get(), 0);
}
