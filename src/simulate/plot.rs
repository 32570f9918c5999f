//! Cold start against nodes, as an SVG: both axes logarithmic, the model's curves and what Copper's
//! paper states.
//!
//! Pure: points in, text out. Colours are told apart by most colour-blind readers (Okabe and Ito), and
//! every kind of point has a shape of its own.

use super::paper::{STATED, Stated, System};
use std::fmt::Write as _;

/// A curve of the model.
#[derive(Debug, Clone)]
pub struct Curve {
    /// For the legend.
    pub name: String,
    /// Nodes and seconds.
    pub points: Vec<(f64, f64)>,
}

const WIDTH: f64 = 860.0;
const HEIGHT: f64 = 610.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 20.0;
const TOP: f64 = 46.0;
const BOTTOM: f64 = 185.0;
const COLOURS: [&str; 4] = ["#0072b2", "#009e73", "#cc79a7", "#56b4e9"];
const LUSTRE: &str = "#000000";
const COPPER: &str = "#d55e00";

/// The plot. `note` says in at most two lines what was simulated.
#[must_use]
pub fn svg(curves: &[Curve], note: &str) -> String {
    let seconds = curves
        .iter()
        .flat_map(|curve| curve.points.iter().map(|&(_, y)| y))
        .chain(STATED.iter().map(|stated| stated.seconds))
        .filter(|&y| y > 0.0);
    let (low, high) = seconds.fold((f64::MAX, f64::MIN), |(low, high), y| {
        (low.min(y), high.max(y))
    });
    let nodes = curves
        .iter()
        .flat_map(|curve| curve.points.iter().map(|&(x, _)| x));
    let most = nodes.fold(10_000.0, f64::max);
    let axes = Axes {
        x: (0.0, most.log10().ceil()),
        y: (low.log10().floor(), high.log10().ceil()),
    };
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
         font-family=\"sans-serif\" font-size=\"13\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
         <text x=\"{LEFT}\" y=\"26\" font-size=\"17\">Cold start against nodes</text>\n"
    );
    axes.draw(&mut svg);
    let mut legend = Legend::default();
    for (curve, colour) in curves.iter().zip(COLOURS.iter().cycle()) {
        axes.curve(&mut svg, curve, colour);
        legend.line(&mut svg, Mark::Circle, colour, &curve.name);
    }
    for stated in &STATED {
        axes.stated(&mut svg, stated);
        let (mark, colour, system) = look(stated.system);
        let name = format!(
            "{system}, {}, {} s at {} nodes (paper, {})",
            stated.what,
            stated.seconds,
            range(stated.nodes),
            stated.section
        );
        legend.line(&mut svg, mark, colour, &name);
    }
    for (index, line) in note.lines().enumerate() {
        let y = HEIGHT - 26.0 + 14.0 * f64::from(u32::try_from(index).unwrap_or(0));
        text(&mut svg, LEFT, y, "font-size=\"11\"", line);
    }
    svg.push_str("</svg>\n");
    svg
}

fn look(system: System) -> (Mark, &'static str, &'static str) {
    match system {
        System::Lustre => (Mark::Square, LUSTRE, "Lustre"),
        System::Copper => (Mark::Diamond, COPPER, "Copper"),
    }
}

fn range((from, to): (f64, f64)) -> String {
    if from < to {
        format!("{from} to {to}")
    } else {
        from.to_string()
    }
}

#[derive(Debug, Clone, Copy)]
enum Mark {
    Circle,
    Square,
    Diamond,
}

/// The ends of both axes, as powers of ten.
struct Axes {
    x: (f64, f64),
    y: (f64, f64),
}

impl Axes {
    fn at(&self, nodes: f64, seconds: f64) -> (f64, f64) {
        let share = |value: f64, (low, high): (f64, f64)| (value.log10() - low) / (high - low);
        let x = LEFT + share(nodes, self.x) * (WIDTH - LEFT - RIGHT);
        let y = HEIGHT - BOTTOM - share(seconds, self.y) * (HEIGHT - TOP - BOTTOM);
        (x, y)
    }

    fn draw(&self, svg: &mut String) {
        let (left, bottom) = (LEFT, HEIGHT - BOTTOM);
        for power in powers(self.x) {
            let (x, _) = self.at(10_f64.powf(power), 1.0);
            line(svg, (x, TOP), (x, bottom), "stroke=\"#ddd\"");
            let label = thousands(10_f64.powf(power));
            text(svg, x, bottom + 18.0, "text-anchor=\"middle\"", &label);
        }
        for power in powers(self.y) {
            let (_, y) = self.at(1.0, 10_f64.powf(power));
            line(svg, (left, y), (WIDTH - RIGHT, y), "stroke=\"#ddd\"");
            let label = duration(10_f64.powf(power));
            text(svg, left - 8.0, y + 4.0, "text-anchor=\"end\"", &label);
        }
        line(
            svg,
            (left, bottom),
            (WIDTH - RIGHT, bottom),
            "stroke=\"#333\"",
        );
        line(svg, (left, TOP), (left, bottom), "stroke=\"#333\"");
        let middle = f64::midpoint(left, WIDTH - RIGHT);
        text(
            svg,
            middle,
            bottom + 36.0,
            "text-anchor=\"middle\"",
            "nodes",
        );
        text(svg, left, TOP - 6.0, "text-anchor=\"middle\"", "time");
    }

    fn curve(&self, svg: &mut String, curve: &Curve, colour: &str) {
        let mut path = String::new();
        for &(nodes, seconds) in curve.points.iter().filter(|&&(_, y)| y > 0.0) {
            let (x, y) = self.at(nodes, seconds);
            put(&mut path, format_args!("{x:.1},{y:.1} "));
        }
        put(
            svg,
            format_args!(
                "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>\n",
                path.trim_end()
            ),
        );
        for &(nodes, seconds) in curve.points.iter().filter(|&&(_, y)| y > 0.0) {
            mark(svg, Mark::Circle, self.at(nodes, seconds), colour);
        }
    }

    fn stated(&self, svg: &mut String, stated: &Stated) {
        let (kind, colour, _) = look(stated.system);
        let (from, to) = stated.nodes;
        let ends = (self.at(from, stated.seconds), self.at(to, stated.seconds));
        if from < to {
            let stroke = format!("stroke=\"{colour}\" stroke-width=\"2\" stroke-dasharray=\"6 4\"");
            line(svg, ends.0, ends.1, &stroke);
            mark(svg, kind, ends.1, colour);
        }
        mark(svg, kind, ends.0, colour);
    }
}

/// Lines below the plot.
#[derive(Default)]
struct Legend {
    lines: u32,
}

impl Legend {
    fn line(&mut self, svg: &mut String, kind: Mark, colour: &str, name: &str) {
        let x = LEFT;
        let y = HEIGHT - BOTTOM + 58.0 + f64::from(self.lines) * 17.0;
        mark(svg, kind, (x, y - 4.0), colour);
        text(svg, x + 12.0, y, "font-size=\"11\"", name);
        self.lines += 1;
    }
}

fn powers((low, high): (f64, f64)) -> impl Iterator<Item = f64> {
    std::iter::successors(Some(low), |power| Some(power + 1.0)).take_while(move |&p| p <= high)
}

/// Writing to a string does not fail.
pub(super) fn put(svg: &mut String, what: std::fmt::Arguments<'_>) {
    let _infallible = svg.write_fmt(what);
}

pub(super) fn line(svg: &mut String, from: (f64, f64), to: (f64, f64), style: &str) {
    put(
        svg,
        format_args!(
            "<line x1=\"{:.1}\" y1=\"{:.1}\" x2=\"{:.1}\" y2=\"{:.1}\" {style}/>\n",
            from.0, from.1, to.0, to.1
        ),
    );
}

pub(super) fn text(svg: &mut String, x: f64, y: f64, style: &str, what: &str) {
    let what = escaped(what);
    put(
        svg,
        format_args!("<text x=\"{x:.1}\" y=\"{y:.1}\" {style}>{what}</text>\n"),
    );
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

fn mark(svg: &mut String, kind: Mark, (x, y): (f64, f64), colour: &str) {
    match kind {
        Mark::Circle => put(
            svg,
            format_args!("<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3.5\" fill=\"{colour}\"/>\n"),
        ),
        Mark::Square | Mark::Diamond => {
            let turn = if matches!(kind, Mark::Diamond) { 45 } else { 0 };
            put(
                svg,
                format_args!(
                    "<rect x=\"{:.1}\" y=\"{:.1}\" width=\"8\" height=\"8\" fill=\"{colour}\" \
                     transform=\"rotate({turn} {x:.1} {y:.1})\"/>\n",
                    x - 4.0,
                    y - 4.0
                ),
            );
        }
    }
}

/// `10000` as `10,000`.
pub(super) fn thousands(number: f64) -> String {
    let digits = format!("{number:.0}");
    let mut out = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// A power of ten of seconds with its unit.
fn duration(seconds: f64) -> String {
    if seconds >= 0.999 {
        format!("{} s", thousands(seconds))
    } else if seconds >= 0.999e-3 {
        format!("{:.0} ms", seconds * 1e3)
    } else {
        format!("{:.0} µs", seconds * 1e6)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn curves_and_stated_figures_are_drawn_within_the_frame() {
        let curve = Curve {
            name: "model <arity 4>".into(),
            points: vec![(1.0, 0.05), (100.0, 0.3), (100_000.0, 0.31)],
        };
        let text = svg(&[curve], "25 GB/s & 2 µs");
        assert!(text.starts_with("<svg ") && text.ends_with("</svg>\n"));
        assert!(text.contains("model &lt;arity 4&gt;") && text.contains("25 GB/s &amp; 2 µs"));
        assert!(text.contains("100,000") && text.contains("10 ms"));
        assert_eq!(text.matches("<polyline").count(), 1);
        for stated in STATED {
            assert!(text.contains(stated.section), "{}", stated.section);
        }
        for value in text.split("cx=\"").skip(1) {
            let x: f64 = value.split('"').next().unwrap().parse().unwrap();
            assert!((LEFT..=WIDTH).contains(&x), "{x}");
        }
        assert!(!text.contains("NaN") && !text.contains("inf"));
    }

    #[test]
    fn labels_are_for_people() {
        assert_eq!(thousands(1.0), "1");
        assert_eq!(thousands(100_000.0), "100,000");
        assert_eq!(duration(1000.0), "1,000 s");
        assert_eq!(duration(0.01), "10 ms");
        assert_eq!(duration(1e-5), "10 µs");
    }
}
