//! The state of the screen: order, filter and scroll position. Takes keys and returns rows. Draws nothing.

use super::rates::{Picture, Rates, Row};
use crate::cli::or_dash;
use crate::num::whole;
use copperfs_policy::amounts::ByteSize;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use std::cmp::Ordering;

/// The minimum width of the node's column.
pub(super) const NODE_WIDTH_MIN: u16 = 16;
/// Longest filter.
const FILTER_CHARS_MAX: usize = 64;

/// Makes the text of a number.
type Form = fn(f64) -> String;

/// A column of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Column {
    Node,
    Rank,
    Role,
    Requests,
    Reads,
    Lookups,
    Hits,
    UpstreamRequests,
    UpstreamBytes,
    DownstreamBytes,
    OriginBytes,
    Memory,
    State,
}

impl Column {
    /// All, from left to right.
    pub(super) const ALL: [Self; 13] = [
        Self::Node,
        Self::Rank,
        Self::Role,
        Self::Requests,
        Self::Reads,
        Self::Lookups,
        Self::Hits,
        Self::UpstreamRequests,
        Self::UpstreamBytes,
        Self::DownstreamBytes,
        Self::OriginBytes,
        Self::Memory,
        Self::State,
    ];

    /// Its title, the width for the title, the sort mark and any number, and the form of its numbers. Columns of
    /// words have none.
    pub(super) fn shape(self) -> (&'static str, u16, Option<Form>) {
        match self {
            Self::Node => ("node", NODE_WIDTH_MIN, None),
            Self::Rank => ("rank", 6, Some(|rank| rank.to_string())),
            Self::Role => ("role", 6, None),
            Self::Requests => ("req/s", 9, Some(count)),
            Self::Reads => ("reads/s", 9, Some(count)),
            Self::Lookups => ("lookups/s", 10, Some(count)),
            Self::Hits => ("hits", 6, Some(percent)),
            Self::UpstreamRequests => ("asked/s", 9, Some(count)),
            Self::UpstreamBytes => ("recv/s", 9, Some(bytes)),
            Self::DownstreamBytes => ("sent/s", 9, Some(bytes)),
            Self::OriginBytes => ("storage/s", 11, Some(bytes)),
            Self::Memory => ("memory", 8, Some(bytes)),
            Self::State => ("state", 10, None),
        }
    }

    /// The number of `row` in this column, if there is one.
    fn number(self, row: &Row) -> Option<f64> {
        let rates = row.rates.as_ref();
        match self {
            Self::Node | Self::Role | Self::State => None,
            Self::Rank => row.rank.map(|rank| rank as f64),
            Self::Requests => rates.map(|rates| rates.requests),
            Self::Reads => rates.map(|rates| rates.reads),
            Self::Lookups => rates.map(|rates| rates.lookups),
            Self::Hits => rates.and_then(Rates::hit_ratio),
            Self::UpstreamRequests => rates.map(|rates| rates.upstream_requests),
            Self::UpstreamBytes => rates.map(|rates| rates.upstream_bytes),
            Self::DownstreamBytes => rates.map(|rates| rates.downstream_bytes),
            Self::OriginBytes => rates.map(|rates| rates.origin_bytes),
            Self::Memory => row.rss_bytes.map(|bytes| bytes as f64),
        }
    }

    /// `row`'s cell.
    pub(super) fn cell(self, row: &Row) -> String {
        let (.., form) = self.shape();
        match self {
            Self::Node => row.node.clone(),
            Self::Role => row.role.clone(),
            Self::State => row.state.name().to_owned(),
            _ => or_dash(
                self.number(row)
                    .zip(form)
                    .map(|(number, form)| form(number)),
            ),
        }
    }

    fn compare(self, a: &Row, b: &Row) -> Ordering {
        match self {
            Self::Node => a.node.cmp(&b.node),
            Self::Role => a.role.cmp(&b.role),
            Self::State => a.state.cmp(&b.state),
            _ => match (self.number(a), self.number(b)) {
                (Some(a), Some(b)) => a.total_cmp(&b),
                // Rows without a number come first in ascending order, and last in descending order.
                (a, b) => a.is_some().cmp(&b.is_some()),
            },
        }
    }
}

/// A rate of events.
pub(super) fn count(rate: f64) -> String {
    if rate > 0.0 && rate < 9.95 {
        format!("{rate:.1}")
    } else {
        crate::cli::stats::grouped(whole(rate.round()))
    }
}

/// A rate, or an amount, of bytes.
pub(super) fn bytes(rate: f64) -> String {
    ByteSize(whole(rate.round())).to_string()
}

/// A share, 0 to 1.
pub(super) fn percent(share: f64) -> String {
    format!("{:.1}%", share * 100.0)
}

/// The effect of a key on the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// Continue.
    Stay,
    /// End.
    Quit,
}

/// The state of the screen.
#[derive(Debug)]
pub(super) struct App {
    pub(super) sort: Column,
    /// Whether the largest value comes first.
    pub(super) descending: bool,
    /// The text that a row must contain.
    pub(super) filter: String,
    /// Whether keys are added to the filter.
    pub(super) typing: bool,
    /// The number of rows above the first visible row.
    pub(super) offset: usize,
    /// The number of visible rows when the screen was last drawn.
    pub(super) height: usize,
    /// The number of rows that match the filter.
    pub(super) matching: usize,
}

impl Default for App {
    fn default() -> Self {
        Self {
            sort: Column::Rank,
            descending: false,
            filter: String::new(),
            typing: false,
            offset: 0,
            height: 1,
            matching: 0,
        }
    }
}

impl App {
    /// Handles a key.
    pub(super) fn key(&mut self, key: KeyEvent) -> Step {
        if key.kind == KeyEventKind::Release {
            return Step::Stay;
        }
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            return match key.code {
                KeyCode::Char('c' | 'd') => Step::Quit,
                _ => Step::Stay,
            };
        }
        if self.typing {
            self.type_key(key.code);
            return Step::Stay;
        }
        match key.code {
            KeyCode::Char('q') => return Step::Quit,
            KeyCode::Char('/') => self.typing = true,
            KeyCode::Esc => self.filter.clear(),
            KeyCode::Char('r') => self.descending = !self.descending,
            KeyCode::Right | KeyCode::Char('>' | 'l') => self.sort_by(1),
            KeyCode::Left | KeyCode::Char('<' | 'h') => self.sort_by(Column::ALL.len() - 1),
            KeyCode::Down | KeyCode::Char('j') => self.scroll_to(self.offset.saturating_add(1)),
            KeyCode::Up | KeyCode::Char('k') => self.scroll_to(self.offset.saturating_sub(1)),
            KeyCode::PageDown | KeyCode::Char(' ') => {
                self.scroll_to(self.offset.saturating_add(self.height));
            }
            KeyCode::PageUp => self.scroll_to(self.offset.saturating_sub(self.height)),
            KeyCode::Home | KeyCode::Char('g') => self.scroll_to(0),
            KeyCode::End | KeyCode::Char('G') => self.scroll_to(usize::MAX),
            _ => {}
        }
        Step::Stay
    }

    fn type_key(&mut self, code: KeyCode) {
        match code {
            KeyCode::Enter => self.typing = false,
            KeyCode::Esc => {
                self.typing = false;
                self.filter.clear();
            }
            KeyCode::Backspace => drop(self.filter.pop()),
            KeyCode::Char(c) if self.filter.chars().count() < FILTER_CHARS_MAX => {
                self.filter.push(c);
            }
            _ => {}
        }
        self.offset = 0;
    }

    /// Sorts by the column `steps` to the right. Columns of numbers start with the largest.
    fn sort_by(&mut self, steps: usize) {
        let all = Column::ALL;
        let at = all.iter().position(|column| *column == self.sort);
        self.sort = all[(at.unwrap_or(0) + steps) % all.len()];
        self.descending = !matches!(self.sort, Column::Node | Column::Rank | Column::Role);
    }

    fn scroll_to(&mut self, offset: usize) {
        self.offset = offset.min(self.matching.saturating_sub(self.height));
    }

    /// The rows that match the filter, in order, from the first visible row on. `height` rows fit.
    pub(super) fn rows<'a>(&mut self, picture: &'a Picture, height: usize) -> Vec<&'a Row> {
        let wanted = self.filter.to_lowercase();
        let matches = |row: &&Row| {
            let texts = [&row.node, &row.role, row.state.name()];
            let mut texts = texts.iter().map(|text| text.to_lowercase());
            texts.any(|text| text.contains(&wanted))
        };
        let mut rows: Vec<&Row> = picture.rows.iter().filter(matches).collect();
        // Stable: equal rows stay in rank order.
        rows.sort_by(|a, b| {
            let order = self.sort.compare(a, b);
            match self.descending {
                true => order.reverse(),
                false => order,
            }
        });
        self.height = height.max(1);
        self.matching = rows.len();
        self.scroll_to(self.offset);
        rows.split_off(self.offset.min(rows.len()))
    }
}
