use super::app::Column;
use super::rates::{Rates, Row};
use super::*;
use crate::cli::status::view::NodeState;
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

fn row(rank: usize, state: NodeState, reads: Option<f64>) -> Row {
    let rates = reads.map(|reads| Rates {
        requests: 2.0 * reads,
        reads,
        hits: reads,
        misses: reads / 3.0,
        upstream_requests: reads / 10.0,
        upstream_bytes: 2048.0 * reads,
        ..Rates::default()
    });
    Row {
        node: format!("nid{rank:04}"),
        rank: Some(rank),
        role: if rank == 0 { "root" } else { "leaf" }.into(),
        state,
        rates,
        rss_bytes: (state != NodeState::Missing).then_some(30 << 20),
    }
}

fn picture() -> Picture {
    Picture {
        rows: vec![
            row(0, NodeState::Ok, Some(0.0)),
            row(1, NodeState::Moved, Some(1234.0)),
            row(2, NodeState::Missing, None),
            row(3, NodeState::Ok, Some(3.25)),
        ],
        total: Some(Rates {
            requests: 2474.5,
            bytes_read: 5e6,
            ..Rates::default()
        }),
        kinds: vec![("read".into(), 1237.2), ("lookup".into(), 4.0)],
        rss_bytes: 90 << 20,
        roots: 1,
    }
}

fn situation(trouble: Option<&str>) -> Situation {
    Situation {
        mountpoint: "/copper_mnt".into(),
        interval: Duration::from_secs(1),
        trouble: trouble.map(Into::into),
        colours: true,
    }
}

/// What a screen of that size shows, without blanks at the ends of lines.
fn screen_of(app: &mut App, now: &Situation, (width, height): (u16, u16)) -> String {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    let picture = picture();
    terminal
        .draw(|frame| screen::draw(frame, app, &picture, now))
        .unwrap();
    let buffer = terminal.backend().buffer();
    let lines = (0..height).map(|y| {
        let line: String = (0..width).map(|x| buffer[(x, y)].symbol()).collect();
        line.trim_end().to_owned()
    });
    lines.collect::<Vec<_>>().join("\n")
}

fn press(app: &mut App, keys: &[KeyCode]) {
    for key in keys {
        let step = app.key(KeyEvent::new(*key, KeyModifiers::NONE));
        assert_eq!(step, Step::Stay, "{key:?}");
    }
}

#[test]
fn a_wide_screen_shows_every_column() {
    let wanted = "\
copperfs top  /copper_mnt  every 1s
nodes: 4, 1 missing, 1 moved; roots: 1
kernel: 2,475 req/s (read 1,237, lookup 4.0), 4.76 MiB/s read, hits -
received: 0 req/s, 0 B/s; from storage: 0 opens/s, 0 B/s; memory: 90.0 MiB
node               rank▲  role        req/s    reads/s   lookups/s    hits    asked/s     recv/s     sent/s    storage/s    memory  state
nid0000                0  root            0          0           0       -          0        0 B        0 B          0 B  30.0 MiB  ok
nid0001                1  leaf        2,468      1,234           0   75.0%        123   2.41 MiB        0 B          0 B  30.0 MiB  moved
nid0002                2  leaf            -          -           -       -          -          -          -            -         -  missing
nid0003                3  leaf          6.5        3.2           0   75.0%        0.3   6.50 KiB        0 B          0 B  30.0 MiB  ok

q quit  ←→ sort by  r reverse  / filter  ↑↓ PgUp PgDn Home End scroll";
    let shown = screen_of(&mut App::default(), &situation(None), (142, 11));
    assert_eq!(shown, wanted, "\n{shown}");
}

#[test]
fn a_narrow_screen_keeps_important_columns_and_shows_errors() {
    let mut app = App::default();
    press(&mut app, &[KeyCode::Right; 4]);
    assert_eq!((app.sort, app.descending), (Column::Lookups, true));
    press(&mut app, &[KeyCode::Left]);
    let wanted = "\
copperfs top  /copper_mnt  every 1s
nodes: 4, 1 missing, 1 moved; roots: 1
kernel: 2,475 req/s (read 1,237, lookup 4.0), 4.76 MiB/s read, hits -
received: 0 req/s, 0 B/s; from storage: 0 opens/s, 0 B/s; memory: 90.0 MiB
node                      reads/s▼    hits     recv/s    storage/s  state
nid0001                      1,234   75.0%   2.41 MiB          0 B  moved
nid0003                        3.2   75.0%   6.50 KiB          0 B  ok
no answer, trying on: the daemon of /copper_mnt is gone and left its mount
behind: `copperfs unmount` removes it
q quit  ←→ sort by  r reverse  / filter  ↑↓ PgUp PgDn Home End scroll";
    let why = "the daemon of /copper_mnt is gone and left its mount behind: `copperfs unmount` \
               removes it";
    let shown = screen_of(&mut app, &situation(Some(why)), (78, 10));
    assert_eq!(shown, wanted, "\n{shown}");
}

#[test]
fn a_tiny_screen_is_no_reason_to_end() {
    for size in [(1, 1), (10, 2), (20, 5), (500, 3)] {
        screen_of(&mut App::default(), &situation(Some("x")), size);
    }
}

#[test]
fn keys_choose_order_filter_and_place() {
    let picture = picture();
    let names = |app: &mut App, height| -> Vec<String> {
        let rows = app.rows(&picture, height);
        rows.iter().map(|row| row.node[6..].to_owned()).collect()
    };
    let mut app = App::default();
    assert_eq!(names(&mut app, 10), ["0", "1", "2", "3"]);
    press(&mut app, &[KeyCode::Char('r')]);
    assert_eq!(names(&mut app, 10), ["3", "2", "1", "0"]);
    press(&mut app, &[KeyCode::Right, KeyCode::Right]);
    assert_eq!(app.sort, Column::Requests);
    assert_eq!(names(&mut app, 10), ["1", "3", "0", "2"]);

    press(&mut app, &[KeyCode::Char('/'), KeyCode::Char('Q')]);
    assert!(names(&mut app, 10).is_empty());
    press(&mut app, &[KeyCode::Backspace]);
    press(
        &mut app,
        &"MOVED".chars().map(KeyCode::Char).collect::<Vec<_>>(),
    );
    assert_eq!(names(&mut app, 10), ["1"]);
    press(&mut app, &[KeyCode::Enter]);
    assert_eq!((app.typing, app.matching), (false, 1));
    press(&mut app, &[KeyCode::Esc]);

    assert_eq!(names(&mut app, 3).len(), 4, "as many as there are; 3 fit");
    press(&mut app, &[KeyCode::End]);
    assert_eq!(names(&mut app, 3), ["3", "0", "2"]);
    press(&mut app, &[KeyCode::PageUp, KeyCode::Down]);
    assert_eq!(names(&mut app, 3), ["3", "0", "2"]);
    press(&mut app, &[KeyCode::Home, KeyCode::Up]);
    assert_eq!(names(&mut app, 3).first().map(String::as_str), Some("1"));
    for quit in [
        KeyEvent::new(KeyCode::Char('q'), KeyModifiers::NONE),
        KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL),
    ] {
        assert_eq!(app.key(quit), Step::Quit);
    }
}

#[test]
fn intervals_have_a_least_one() {
    assert_eq!(interval("1s").unwrap(), Duration::from_secs(1));
    assert!(
        interval("1ms")
            .unwrap_err()
            .to_string()
            .contains("less than")
    );
    assert!(interval("soon").is_err());
}
