//! The `copperfs` program: all of it is in the library.

use std::process::ExitCode;

/// Entry point.
fn main() -> ExitCode {
    copperfs::cli::main()
}
