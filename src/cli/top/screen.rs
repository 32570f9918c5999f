//! Draws the screen: totals, table, and a line of help.

use super::app::{App, Column, NODE_WIDTH_MIN, bytes, count, percent};
use super::rates::{Picture, Rates};
use crate::cli::or_dash;
use crate::cli::status::view::NodeState;
use copperfs_policy::amounts::ByteSize;
use ratatui::Frame;
use ratatui::layout::{Alignment, Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Cell, Paragraph, Row, Table, Wrap};
use std::time::Duration;

/// Blank characters between two columns.
const SPACING: u16 = 2;

/// The content of the header besides the rates.
#[derive(Debug)]
pub(super) struct Situation {
    /// The mount point.
    pub(super) mountpoint: String,
    pub(super) interval: Duration,
    /// The error of the last request, if it failed.
    pub(super) trouble: Option<String>,
    /// Whether the screen has colours.
    pub(super) colours: bool,
}

/// Draws the screen.
pub(super) fn draw(frame: &mut Frame<'_>, app: &mut App, picture: &Picture, now: &Situation) {
    let trouble_height = if now.trouble.is_some() { 2 } else { 0 };
    let [header, table, trouble, help] = Layout::vertical([
        Constraint::Length(4),
        Constraint::Min(2),
        Constraint::Length(trouble_height),
        Constraint::Length(1),
    ])
    .areas(frame.area());
    draw_table(frame, app, picture, table, now.colours);
    frame.render_widget(Paragraph::new(headlines(app, picture, now)), header);
    if let Some(why) = &now.trouble {
        let text = Paragraph::new(format!("no answer, trying on: {why}"))
            .style(paint(now.colours, Color::Red))
            .wrap(Wrap { trim: true });
        frame.render_widget(text, trouble);
    }
    frame.render_widget(Paragraph::new(help_line(app)), help);
}

fn headlines(app: &App, picture: &Picture, now: &Situation) -> Vec<Line<'static>> {
    let interval = format!("every {:?}", now.interval);
    let title = format!("copperfs top  {}  {interval}", now.mountpoint);
    let bold = Style::new().add_modifier(Modifier::BOLD);
    let total = picture.total.as_ref();
    let rate = |of: fn(&Rates) -> f64| or_dash(total.map(|total| count(of(total))));
    let size = |of: fn(&Rates) -> f64| or_dash(total.map(|total| bytes(of(total))));
    let kinds = picture.kinds.iter().take(4);
    let kinds = kinds.map(|(name, rate)| format!("{name} {}", count(*rate)));
    let kinds = match kinds.collect::<Vec<_>>().join(", ") {
        none if none.is_empty() => none,
        kinds => format!(" ({kinds})"),
    };
    vec![
        Line::from(Span::styled(title, bold)),
        nodes(app, picture, now.colours),
        Line::from(format!(
            "kernel: {} req/s{kinds}, {}/s read, hits {}",
            rate(|total| total.requests),
            size(|total| total.bytes_read),
            or_dash(total.and_then(Rates::hit_ratio).map(percent)),
        )),
        Line::from(format!(
            "received: {} req/s, {}/s; from storage: {} opens/s, {}/s; memory: {}",
            rate(|total| total.upstream_requests),
            size(|total| total.upstream_bytes),
            rate(|total| total.origin_opens),
            size(|total| total.origin_bytes),
            ByteSize(picture.rss_bytes),
        )),
    ]
}

fn nodes(app: &App, picture: &Picture, colours: bool) -> Line<'static> {
    let in_state = |state: NodeState| picture.rows.iter().filter(|row| row.state == state).count();
    let mut parts = vec![Span::raw(format!("nodes: {}", picture.rows.len()))];
    let unhealthy = NodeState::ALL
        .iter()
        .filter(|state| **state != NodeState::Ok);
    // The worst state first.
    for state in unhealthy.rev().filter(|state| in_state(**state) > 0) {
        let text = format!("{} {}", in_state(*state), state.name());
        parts.push(Span::raw(", "));
        parts.push(Span::styled(text, paint(colours, colour(*state))));
    }
    parts.push(Span::raw(format!("; roots: {}", picture.roots)));
    if !app.filter.is_empty() {
        let text = format!("; {} match {:?}", app.matching, app.filter);
        parts.push(Span::raw(text));
    }
    Line::from(parts)
}

fn draw_table(frame: &mut Frame<'_>, app: &mut App, picture: &Picture, area: Rect, colours: bool) {
    let columns = columns(area.width);
    let height = usize::from(area.height.saturating_sub(1));
    let rows = app.rows(picture, height);
    let rows = rows.into_iter().take(height).map(|row| {
        Row::new(columns.iter().map(|&(column, _)| {
            let text = Line::from(column.cell(row)).alignment(alignment(column));
            let style = match column {
                Column::State => paint(colours, colour(row.state)),
                _ => Style::new(),
            };
            Cell::from(text).style(style)
        }))
    });
    let head = Row::new(columns.iter().map(|&(column, _)| {
        let mut style = Style::new().add_modifier(Modifier::BOLD);
        let (title, ..) = column.shape();
        let mut title = title.to_owned();
        if column == app.sort {
            style = style.add_modifier(Modifier::REVERSED);
            title.push(if app.descending { '▼' } else { '▲' });
        }
        Cell::from(Line::from(title).alignment(alignment(column))).style(style)
    }));
    let widths = columns.iter().map(|&(_, width)| Constraint::Length(width));
    let table = Table::new(rows, widths)
        .header(head)
        .column_spacing(SPACING);
    frame.render_widget(table, area);
}

fn alignment(column: Column) -> Alignment {
    match column.shape() {
        (.., Some(_)) => Alignment::Right,
        (.., None) => Alignment::Left,
    }
}

/// The columns that fit in `width`, and their widths. The node's column takes the remaining width.
fn columns(width: u16) -> Vec<(Column, u16)> {
    /// The columns that are dropped on a narrow screen, the first one first.
    const LEAST_WANTED: [Column; 9] = [
        Column::Role,
        Column::Lookups,
        Column::Rank,
        Column::UpstreamRequests,
        Column::DownstreamBytes,
        Column::Requests,
        Column::Memory,
        Column::Hits,
        Column::OriginBytes,
    ];
    let mut columns: Vec<_> = Column::ALL
        .map(|column| (column, column.shape().1))
        .to_vec();
    let taken = |columns: &[(Column, u16)]| -> u16 {
        let others = columns.iter().skip(1);
        others.map(|(_, width)| width + SPACING).sum()
    };
    for unwanted in LEAST_WANTED {
        if taken(&columns) + NODE_WIDTH_MIN <= width {
            break;
        }
        columns.retain(|(column, _)| *column != unwanted);
    }
    let rest = width.saturating_sub(taken(&columns));
    columns[0].1 = rest.clamp(NODE_WIDTH_MIN, 40);
    columns
}

fn help_line(app: &App) -> Line<'static> {
    if app.typing {
        return Line::from(format!("filter: {}_  (Enter: keep, Esc: drop)", app.filter));
    }
    let dim = Style::new().add_modifier(Modifier::DIM);
    let text = "q quit  ←→ sort by  r reverse  / filter  ↑↓ PgUp PgDn Home End scroll";
    Line::from(Span::styled(text, dim))
}

fn colour(state: NodeState) -> Color {
    match state {
        NodeState::Ok => Color::Green,
        NodeState::Moved | NodeState::Connecting => Color::Yellow,
        NodeState::Stranded | NodeState::Missing => Color::Red,
    }
}

fn paint(colours: bool, colour: Color) -> Style {
    match colours {
        true => Style::new().fg(colour),
        false => Style::new(),
    }
}
