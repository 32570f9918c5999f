//! Line and bar charts as SVG.
//!
//! Pure: points in, text out. Most colour-blind readers can distinguish the colours (Okabe and
//! Ito).

use plotters::coord::Shift;
use plotters::coord::ranged1d::{Ranged, ValueFormatter};
use plotters::prelude::*;

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Drawn = Result<(), DrawingAreaErrorKind<std::io::Error>>;

const WIDTH: u32 = 860;
const PLOT_HEIGHT: u32 = 440;
const LEGEND_LINE: u32 = 19;
const NOTE_LINE: u32 = 15;
const FONT: &str = "sans-serif";
const COLOURS: [RGBColor; 7] = [
    RGBColor(0x00, 0x72, 0xb2),
    RGBColor(0xd5, 0x5e, 0x00),
    RGBColor(0x00, 0x9e, 0x73),
    RGBColor(0xcc, 0x79, 0xa7),
    RGBColor(0x56, 0xb4, 0xe9),
    RGBColor(0xe6, 0x9f, 0x00),
    RGBColor(0x00, 0x00, 0x00),
];

/// A named series of points in one colour, in the order of x.
#[derive(Debug, Clone, Default)]
pub struct Series {
    /// The name in the legend.
    pub name: String,
    /// Points as (x, y). Points that are not finite are omitted.
    pub points: Vec<(f64, f64)>,
    /// Whether each point is marked with a dot.
    pub dots: bool,
}

/// A chart. [`Chart::lines`] and [`Chart::bars`] draw it.
#[derive(Debug, Clone, Default)]
pub struct Chart {
    /// The heading.
    pub title: String,
    /// Meaning and unit of x.
    pub x: String,
    /// Meaning and unit of y.
    pub y: String,
    /// The curves, or the bars of one colour.
    pub series: Vec<Series>,
    /// Whether both axes are logarithmic. Otherwise they begin at zero.
    pub logarithmic: bool,
    /// Lines of small print below the legend.
    pub note: String,
}

/// A chart could not be drawn.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("cannot draw the chart {title:?}: {reason}")]
pub struct ChartError {
    title: String,
    reason: String,
}

impl Chart {
    /// Draws the series as curves.
    ///
    /// # Errors
    /// The drawing library cannot lay the chart out.
    pub fn lines(&self) -> Result<String, ChartError> {
        self.draw(|area| {
            let mut builder = self.builder(area);
            if self.logarithmic {
                let x = decades(self.values(|(x, _)| x));
                let y = decades(self.values(|(_, y)| y));
                self.curves(&mut builder.build_cartesian_2d(x.log_scale(), y.log_scale())?)
            } else {
                let x = 0.0..ceiling(self.values(|(x, _)| x));
                let y = 0.0..ceiling(self.values(|(_, y)| y));
                self.curves(&mut builder.build_cartesian_2d(x, y)?)
            }
        })
    }

    /// Draws the series as groups of bars. x counts the groups from zero, and `groups` names them.
    ///
    /// # Errors
    /// The drawing library cannot lay the chart out.
    pub fn bars(&self, groups: &[String]) -> Result<String, ChartError> {
        self.draw(|area| {
            let top = ceiling(self.values(|(_, y)| y));
            let right = f64::from(count(groups.len().max(1)));
            let mut builder = self.builder(area);
            let mut chart = builder.build_cartesian_2d(0.0..right, 0.0..top)?;
            chart
                .configure_mesh()
                .disable_x_mesh()
                .x_labels(0)
                .y_desc(&self.y)
                .y_label_formatter(&label)
                .light_line_style(TRANSPARENT)
                .draw()?;
            let area = chart.plotting_area();
            let width = 0.8 / f64::from(count(self.series.len().max(1)));
            for ((series, colour), place) in self.coloured().zip(0_u32..) {
                for (group, value) in series.finite() {
                    let x = group + 0.1 + width * f64::from(place);
                    let corners = [(x, 0.0), (x + width * 0.92, value)];
                    area.draw(&Rectangle::new(corners, colour.filled()))?;
                    let at = (x, value + top * 0.03);
                    area.draw(&Text::new(label(&value), at, (FONT, 11)))?;
                }
            }
            // Group names replace the labels of the axis.
            for (name, place) in groups.iter().zip(0_u32..) {
                let at = (f64::from(place) + 0.1, top);
                area.draw(&Text::new(name.clone(), at, (FONT, 14)))?;
            }
            Ok(())
        })
    }

    fn draw(&self, plot: impl FnOnce(&Area<'_>) -> Drawn) -> Result<String, ChartError> {
        let mut svg = String::new();
        {
            let size = (WIDTH, self.height());
            let root = SVGBackend::with_string(&mut svg, size).into_drawing_area();
            let (upper, lower) = root.split_vertically(PLOT_HEIGHT);
            root.fill(&WHITE)
                .and_then(|()| plot(&upper))
                .and_then(|()| self.legend(&lower))
                .and_then(|()| root.present())
                .map_err(|error| ChartError {
                    title: self.title.clone(),
                    reason: error.to_string(),
                })?;
        }
        Ok(svg)
    }

    /// Returns the height of the image.
    fn height(&self) -> u32 {
        let legend = LEGEND_LINE * count(self.series.len());
        let note = NOTE_LINE * count(self.note.lines().count());
        PLOT_HEIGHT + legend + note + 12
    }

    fn builder<'a, 'b>(&self, area: &'a Area<'b>) -> ChartBuilder<'a, 'b, SVGBackend<'b>> {
        let mut builder = ChartBuilder::on(area);
        builder
            .caption(&self.title, (FONT, 18))
            .margin(10)
            .margin_right(28)
            .x_label_area_size(40)
            .y_label_area_size(75);
        builder
    }

    fn curves<X, Y>(&self, chart: &mut ChartContext<'_, SVGBackend<'_>, Cartesian2d<X, Y>>) -> Drawn
    where
        X: Ranged<ValueType = f64> + ValueFormatter<f64>,
        Y: Ranged<ValueType = f64> + ValueFormatter<f64>,
    {
        chart
            .configure_mesh()
            .x_desc(&self.x)
            .y_desc(&self.y)
            .x_label_formatter(&label)
            .y_label_formatter(&label)
            .light_line_style(TRANSPARENT)
            .draw()?;
        for (series, colour) in self.coloured() {
            let drawable = series
                .finite()
                // Zero has no logarithm.
                .filter(|&(x, y)| !self.logarithmic || x * y > 0.0);
            let points: Vec<(f64, f64)> = drawable.collect();
            let dots = points.iter().filter(|_| series.dots);
            chart.draw_series(dots.map(|&at| Circle::new(at, 4, colour.filled())))?;
            chart.draw_series(LineSeries::new(points, colour.stroke_width(2)))?;
        }
        Ok(())
    }

    fn legend(&self, area: &Area<'_>) -> Drawn {
        let mut y = 8;
        for (series, colour) in self.coloured() {
            area.draw(&PathElement::new(
                [(80, y), (110, y)],
                colour.stroke_width(3),
            ))?;
            area.draw(&Text::new(series.name.clone(), (118, y - 6), (FONT, 13)))?;
            y += i32::try_from(LEGEND_LINE).unwrap_or(0);
        }
        for line in self.note.lines() {
            area.draw(&Text::new(line.to_owned(), (80, y - 4), (FONT, 11)))?;
            y += i32::try_from(NOTE_LINE).unwrap_or(0);
        }
        Ok(())
    }

    fn coloured(&self) -> impl Iterator<Item = (&Series, &'static RGBColor)> {
        self.series.iter().zip(COLOURS.iter().cycle())
    }

    fn values(&self, axis: fn((f64, f64)) -> f64) -> impl Iterator<Item = f64> {
        self.series.iter().flat_map(Series::finite).map(axis)
    }
}

/// Draws charts as curves, one below the other in one image.
///
/// # Errors
/// The drawing library cannot lay a chart out.
pub fn stack(charts: &[Chart]) -> Result<String, ChartError> {
    let mut inner = String::new();
    let mut height = 0;
    for chart in charts {
        let drawn = chart.lines()?;
        // An image in an image has a place.
        let rest = drawn.strip_prefix("<svg ").unwrap_or(&drawn);
        inner.push_str(&format!("<svg y=\"{height}\" {rest}"));
        height += chart.height();
    }
    Ok(format!(
        "<svg width=\"{WIDTH}\" height=\"{height}\" viewBox=\"0 0 {WIDTH} {height}\" \
         xmlns=\"http://www.w3.org/2000/svg\">\n{inner}</svg>\n"
    ))
}

impl Series {
    fn finite(&self) -> impl Iterator<Item = (f64, f64)> {
        let points = self.points.iter().copied();
        points.filter(|(x, y)| x.is_finite() && y.is_finite())
    }
}

fn count(len: usize) -> u32 {
    u32::try_from(len).unwrap_or(u32::MAX / 64)
}

/// Returns a round number that is at least each of `values`: 1, 1.5, 2, 2.5, 3, 4, 5, 6, 8 or 10
/// times a power of ten.
fn ceiling(values: impl Iterator<Item = f64>) -> f64 {
    let most = values.fold(0.0, f64::max);
    if most <= 0.0 {
        return 1.0;
    }
    let power = 10_f64.powf(most.log10().floor());
    let steps = [1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0];
    let enough = |step: &f64| step * power >= most * 0.999_999;
    steps.into_iter().find(enough).unwrap_or(10.0) * power
}

/// Returns the powers of ten that enclose the positive `values`.
fn decades(values: impl Iterator<Item = f64>) -> std::ops::Range<f64> {
    let positive = values.filter(|&value| value > 0.0);
    let (least, most) = positive.fold((f64::MAX, f64::MIN_POSITIVE), |(least, most), value| {
        (least.min(value), most.max(value))
    });
    if least > most {
        return 1.0..10.0;
    }
    let low = least.log10().floor();
    10_f64.powf(low)..10_f64.powf(most.log10().ceil().max(low + 1.0))
}

/// Formats a number for people: `12,000`, `373`, `2.5`, `0.001`.
#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "the signature of plotters"
)]
fn label(value: &f64) -> String {
    let digits = match value.abs() {
        100.0.. => 0,
        0.1.. => 2,
        _ => 6,
    };
    let text = format!("{value:.digits$}");
    let (whole, fraction) = text.split_once('.').unwrap_or((&text, ""));
    let mut out = String::new();
    for (index, digit) in whole.chars().enumerate() {
        if index > 0 && (whole.len() - index).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    let fraction = fraction.trim_end_matches('0');
    if fraction.is_empty() {
        out
    } else {
        format!("{out}.{fraction}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart() -> Chart {
        let series = |name: &str, points: &[(f64, f64)]| Series {
            name: name.into(),
            points: points.to_vec(),
            dots: true,
        };
        Chart {
            title: "a < b".into(),
            x: "hours".into(),
            y: "MB/s".into(),
            series: vec![
                series("SiloD & Co", &[(0.0, 10.0), (1.0, 373.0)]),
                series("none", &[(0.0, f64::NAN)]),
            ],
            note: "one\ntwo".into(),
            ..Chart::default()
        }
    }

    #[test]
    fn charts_contain_their_texts_and_points() {
        let lines = chart().lines().unwrap();
        for wanted in ["a &lt; b", "SiloD &amp; Co", "hours", "MB/s", "400", "two"] {
            assert!(lines.contains(wanted), "{wanted}: {lines}");
        }
        assert_eq!(lines.matches("<circle").count(), 2);
        let mut bars = chart();
        bars.series.pop();
        let bars = bars.bars(&["fifo".into(), "sjf".into()]).unwrap();
        assert_eq!(bars.matches("<rect").count(), 3, "two bars and the ground");
        assert!(bars.contains("sjf") && bars.contains("373"), "{bars}");
        let mut logarithmic = chart();
        logarithmic.logarithmic = true;
        let logarithmic = logarithmic.lines().unwrap();
        assert_eq!(
            logarithmic.matches("<circle").count(),
            1,
            "0 has no logarithm"
        );
        for text in [lines, bars, logarithmic, Chart::default().lines().unwrap()] {
            assert!(!text.contains("NaN") && !text.contains("inf"), "{text}");
            assert!(text.starts_with("<svg ") && text.ends_with("</svg>\n"));
        }
    }

    #[test]
    fn charts_are_stacked_in_one_image() {
        let (first, second) = (chart(), Chart::default());
        let stacked = stack(&[first.clone(), second.clone()]).unwrap();
        let (height, below) = (first.height() + second.height(), first.height());
        let head = format!("<svg width=\"860\" height=\"{height}\"");
        assert!(stacked.starts_with(&head), "{stacked}");
        assert_eq!(stacked.matches("<svg ").count(), 3);
        assert_eq!(stacked.matches("</svg>").count(), 3);
        let place = format!("<svg y=\"{below}\" ");
        assert!(stacked.contains(&place), "{stacked}");
    }

    #[test]
    fn axes_end_at_round_numbers() {
        assert_eq!(ceiling([373.0, 2.0].into_iter()), 400.0);
        assert_eq!(ceiling([1.0].into_iter()), 1.0);
        assert_eq!(ceiling([0.0].into_iter()), 1.0);
        assert_eq!(decades([0.03, 8300.0].into_iter()), 0.01..10_000.0);
        assert_eq!(decades([5.0, 0.0].into_iter()), 1.0..10.0);
        assert_eq!(decades([].into_iter()), 1.0..10.0);
        for (value, text) in [
            (2.5, "2.5"),
            (12_000.0, "12,000"),
            (373.4, "373"),
            (0.001, "0.001"),
            (1e-6, "0.000001"),
            (0.0, "0"),
        ] {
            assert_eq!(label(&value), text);
        }
    }
}
