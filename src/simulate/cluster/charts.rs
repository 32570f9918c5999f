//! Lines over time and over parameters, and bars, as SVG: the paper's figures 8 to 16.
//!
//! Pure: points in, text out. Colours are told apart by most colour-blind readers (Okabe and Ito),
//! and lines of one colour by their dashes.

use super::super::plot::{line, put, text, thousands};

const WIDTH: f64 = 860.0;
const LEFT: f64 = 80.0;
const RIGHT: f64 = 20.0;
const TOP: f64 = 50.0;
const PLOT: f64 = 340.0;
const LEGEND_LINE: f64 = 18.0;
const COLOURS: [&str; 7] = [
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#000000",
];
const DASHES: [&str; 3] = ["", " stroke-dasharray=\"7 4\"", " stroke-dasharray=\"2 3\""];

/// A line of a chart.
#[derive(Debug, Clone, Default)]
pub struct Series {
    /// For the legend.
    pub name: String,
    /// Points, by x.
    pub points: Vec<(f64, f64)>,
}

/// A chart.
#[derive(Debug, Clone, Default)]
pub struct Chart {
    /// What it shows.
    pub title: String,
    /// What x is, with its unit.
    pub x: String,
    /// What y is, with its unit.
    pub y: String,
    /// What is drawn.
    pub series: Vec<Series>,
}

impl Chart {
    /// Lines between the points, both axes from zero.
    #[must_use]
    pub fn lines(&self) -> String {
        let points = || self.series.iter().flat_map(|series| &series.points);
        let finite = |value: f64| if value.is_finite() { value } else { 0.0 };
        let right = ceiling(points().fold(0.0, |most, point| finite(point.0).max(most)));
        let top = ceiling(points().fold(0.0, |most, point| finite(point.1).max(most)));
        let mut svg = self.frame();
        grid(&mut svg, top);
        for step in 0..=5 {
            let part = f64::from(step) / 5.0;
            let x = LEFT + part * (WIDTH - LEFT - RIGHT);
            line(&mut svg, (x, TOP), (x, TOP + PLOT), "stroke=\"#eee\"");
            let label = tick(part * right);
            text(
                &mut svg,
                x,
                TOP + PLOT + 18.0,
                "text-anchor=\"middle\"",
                &label,
            );
        }
        for (at, series) in self.series.iter().enumerate() {
            let mut path = String::new();
            for &(x, y) in &series.points {
                let x = LEFT + finite(x) / right * (WIDTH - LEFT - RIGHT);
                let y = TOP + PLOT - finite(y) / top * PLOT;
                put(&mut path, format_args!("{x:.1},{y:.1} "));
            }
            let (colour, dashes) = look(at);
            put(
                &mut svg,
                format_args!(
                    "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" \
                     stroke-width=\"1.6\"{dashes}/>\n",
                    path.trim_end()
                ),
            );
        }
        self.legend(&mut svg);
        svg.push_str("</svg>\n");
        svg
    }

    /// Groups of bars: x counts groups from zero and `groups` names them.
    #[must_use]
    pub fn bars(&self, groups: &[String]) -> String {
        let points = || self.series.iter().flat_map(|series| &series.points);
        let top = ceiling(points().fold(0.0, |most, point| point.1.max(most)));
        let mut svg = self.frame();
        grid(&mut svg, top);
        let width = (WIDTH - LEFT - RIGHT) / super::outcome::index_f64(groups.len().max(1));
        let bar = width * 0.8 / super::outcome::index_f64(self.series.len().max(1));
        for (at, name) in groups.iter().enumerate() {
            let middle = LEFT + width * (super::outcome::index_f64(at) + 0.5);
            text(
                &mut svg,
                middle,
                TOP + PLOT + 18.0,
                "text-anchor=\"middle\"",
                name,
            );
        }
        for (at, series) in self.series.iter().enumerate() {
            for &(group, value) in &series.points {
                let from = super::outcome::index_f64(at);
                let x = LEFT + width * (group + 0.1) + bar * from;
                let height = value / top * PLOT;
                let y = TOP + PLOT - height;
                put(
                    &mut svg,
                    format_args!(
                        "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"{height:.1}\" \
                         fill=\"{}\"/>\n",
                        bar * 0.92,
                        look(at).0
                    ),
                );
                let style = "text-anchor=\"middle\" font-size=\"10\"";
                text(&mut svg, x + bar * 0.46, y - 3.0, style, &tick(value));
            }
        }
        self.legend(&mut svg);
        svg.push_str("</svg>\n");
        svg
    }

    fn frame(&self) -> String {
        let height = TOP + PLOT + 60.0 + LEGEND_LINE * super::outcome::index_f64(self.series.len());
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" \
             font-family=\"sans-serif\" font-size=\"13\">\n\
             <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
        );
        text(&mut svg, LEFT, 22.0, "font-size=\"17\"", &self.title);
        text(&mut svg, LEFT, TOP - 8.0, "font-size=\"12\"", &self.y);
        let middle = f64::midpoint(LEFT, WIDTH - RIGHT);
        text(
            &mut svg,
            middle,
            TOP + PLOT + 36.0,
            "text-anchor=\"middle\"",
            &self.x,
        );
        svg
    }

    fn legend(&self, svg: &mut String) {
        for (at, series) in self.series.iter().enumerate() {
            let y = TOP + PLOT + 58.0 + LEGEND_LINE * super::outcome::index_f64(at);
            let (colour, dashes) = look(at);
            let stroke = format!("stroke=\"{colour}\" stroke-width=\"3\"{dashes}");
            line(svg, (LEFT, y - 4.0), (LEFT + 30.0, y - 4.0), &stroke);
            text(svg, LEFT + 38.0, y, "font-size=\"12\"", &series.name);
        }
    }
}

fn look(at: usize) -> (&'static str, &'static str) {
    (
        COLOURS[at % COLOURS.len()],
        DASHES[at / COLOURS.len() % DASHES.len()],
    )
}

fn grid(svg: &mut String, top: f64) {
    for step in 0..=5 {
        let part = f64::from(step) / 5.0;
        let y = TOP + PLOT * (1.0 - part);
        line(svg, (LEFT, y), (WIDTH - RIGHT, y), "stroke=\"#ddd\"");
        let label = tick(part * top);
        text(svg, LEFT - 8.0, y + 4.0, "text-anchor=\"end\"", &label);
    }
    let stroke = "stroke=\"#333\"";
    line(svg, (LEFT, TOP), (LEFT, TOP + PLOT), stroke);
    line(svg, (LEFT, TOP + PLOT), (WIDTH - RIGHT, TOP + PLOT), stroke);
}

/// The next of 1, 2, 2.5, 5 times a power of ten, so that a fifth of it is short to write.
fn ceiling(value: f64) -> f64 {
    if !(value.is_finite() && value > 0.0) {
        return 1.0;
    }
    let power = 10_f64.powf(value.log10().floor());
    let steps = [1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0];
    let found = steps
        .into_iter()
        .find(|step| step * power >= value * 0.999_999);
    found.unwrap_or(10.0) * power
}

fn tick(value: f64) -> String {
    if value >= 1000.0 {
        thousands(value)
    } else if value >= 100.0 || value == value.trunc() {
        format!("{value:.0}")
    } else {
        let text = format!("{value:.2}");
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart() -> Chart {
        let series = |name: &str, points: &[(f64, f64)]| Series {
            name: name.into(),
            points: points.to_vec(),
        };
        Chart {
            title: "a < b".into(),
            x: "hours".into(),
            y: "MB/s".into(),
            series: vec![
                series("SiloD", &[(0.0, 10.0), (1.0, 373.0)]),
                series("none", &[(0.0, f64::NAN)]),
            ],
        }
    }

    #[test]
    fn lines_and_bars_stay_within_the_frame() {
        let lines = chart().lines();
        assert!(lines.contains("a &lt; b") && lines.contains("SiloD") && lines.contains("400"));
        assert_eq!(lines.matches("<polyline").count(), 2);
        let mut bars = chart();
        bars.series.pop();
        let bars = bars.bars(&["fifo".into(), "sjf".into()]);
        assert_eq!(bars.matches("<rect").count(), 3, "two bars and the ground");
        for text in [lines, bars] {
            assert!(!text.contains("NaN") && !text.contains("inf"), "{text}");
            assert!(text.starts_with("<svg ") && text.ends_with("</svg>\n"));
        }
        assert!(!Chart::default().lines().contains("NaN"));
    }

    #[test]
    fn axes_end_at_round_numbers() {
        assert_eq!(ceiling(373.0), 400.0);
        assert_eq!(ceiling(1.0), 1.0);
        assert_eq!(ceiling(0.0), 1.0);
        assert_eq!(tick(2.5), "2.5");
        assert_eq!(tick(12_000.0), "12,000");
    }
}
