# What developers run; `just` alone lists it.

_default:
    @just --list

# Everything that CI checks
check:
    scripts/test

# The quick part: formatting, lints, unit tests
quick:
    cargo fmt --all -- --check
    cargo clippy --workspace --all-targets -- -D warnings
    cargo test --workspace --lib

# Fuzzes the decoders for longer than CI does
fuzz SECONDS="60":
    scripts/fuzz --seconds {{SECONDS}}

# Rewrites docs/cli.md, config/full.toml and docs/metrics.md from the program
snapshots:
    UPDATE_SNAPSHOTS=1 cargo test --lib docs_cli_md_equals_help
    UPDATE_SNAPSHOTS=1 cargo test --lib the_full_example_equals_the_table_of_keys
    UPDATE_SNAPSHOTS=1 cargo test --test system metrics::docs_metrics_md_lists_all

# The documentation of the code, with warnings as errors
doc:
    RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps

# The book of docs/, while it is written: http://localhost:3000
book:
    mdbook serve

# The core system tests on Linux 6.1, in a virtual machine
kernel:
    scripts/test-kernel

# A million operations under faults of every kind, with every byte checked
soak:
    cargo build --release
    scripts/soak

# Daemons of eight nodes that die again and again, under readers of all kinds
kills:
    cargo build --release
    scripts/kills

# Licences and advisories of the dependencies
deny:
    cargo deny check
