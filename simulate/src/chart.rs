//! Line and bar charts as SVG.
//!
//! Pure: points in, text out. The heading contains the scope of the numbers, the legend is below the plot and
//! hides no data, and text that is too long for the image is wrapped.

mod marks;
mod text;

use crate::num::{index_f64, whole};
use marks::Mark;
use plotters::coord::Shift;
use plotters::coord::ranged1d::{Ranged, ValueFormatter};
use plotters::element::DashedPathElement;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
pub(crate) use text::thousands;
use text::{number, width, wrapped};

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Drawn = Result<(), DrawingAreaErrorKind<std::io::Error>>;

const WIDTH: u32 = 860;
const PLOT_HEIGHT: u32 = 420;
/// The margin of headings and legends, on both sides.
const MARGIN: i32 = 20;
/// The least room for the title and the labels of the y axis, left of the plot.
const LEFT: i32 = 80;
/// Room for the right half of the last label of the x axis.
const RIGHT: i32 = 44;
const TITLE_LINE: u32 = 22;
const LEGEND_LINE: u32 = 20;
const NOTE_LINE: u32 = 16;
/// Sizes of fonts in pixels.
const TITLE: f64 = 16.0;
const LABEL: f64 = 12.0;
const NOTE: f64 = 11.0;
/// The library divides sizes of fonts by this for SVG.
const LIBRARY_SIZE: f64 = 1.24;
/// The number of shapes on a curve whose points are too many to mark.
const SHAPES_ON_CURVE: usize = 7;
const GRID: RGBColor = RGBColor(0xe2, 0xe2, 0xe2);
const AXIS: RGBColor = RGBColor(0x80, 0x80, 0x80);

/// A named series of points in one colour, in the order of x.
#[derive(Debug, Clone, Default)]
pub struct Series {
    /// The name in the legend.
    pub name: String,
    /// Points as (x, y). Points that are not finite are omitted.
    pub points: Vec<(f64, f64)>,
    /// Whether each point is marked with the shape of the series. Otherwise a few are.
    pub dots: bool,
    /// Whether the shapes are hollow, for values from another source than the other series.
    pub hollow: bool,
}

/// A chart, which [`Chart::svg`] draws.
#[derive(Debug, Clone, Default)]
pub struct Chart {
    /// The name of its file, without the ending.
    pub file: String,
    /// The heading.
    pub title: String,
    /// What the numbers cover, and what they leave out. It follows the title, in parentheses.
    pub scope: String,
    /// Meaning and unit of x.
    pub x: String,
    /// Meaning and unit of y.
    pub y: String,
    /// The curves, or the bars of one colour.
    pub series: Vec<Series>,
    /// Names of groups of bars. x counts the groups from zero. If there are none, the series are curves.
    pub groups: Vec<String>,
    /// Values that the axes reach at least, so that charts of several runs have the same axes.
    pub reach: (f64, f64),
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
    /// Returns the title with the scope of the numbers.
    #[must_use]
    pub fn heading(&self) -> String {
        match self.scope.as_str() {
            "" => self.title.clone(),
            scope => format!("{} ({scope})", self.title),
        }
    }

    /// Draws the chart.
    ///
    /// # Errors
    /// The drawing library cannot lay the chart out.
    pub fn svg(&self) -> Result<String, ChartError> {
        let mut svg = String::new();
        {
            let size = (WIDTH, self.height());
            let root = SVGBackend::with_string(&mut svg, size).into_drawing_area();
            let (upper, lower) = root.split_vertically(self.head_height() + PLOT_HEIGHT);
            let (head, plot) = upper.split_vertically(self.head_height());
            root.fill(&WHITE)
                .and_then(|()| self.head(&head))
                .and_then(|()| self.plot(&plot))
                .and_then(|()| self.legend(&lower))
                .and_then(|()| root.present())
                .map_err(|error| ChartError {
                    title: self.title.clone(),
                    reason: error.to_string(),
                })?;
        }
        Ok(svg)
    }

    fn plot(&self, area: &Area<'_>) -> Drawn {
        if !self.groups.is_empty() {
            return self.bars(area);
        }
        let mut builder = self.builder(area);
        if self.logarithmic {
            let x = decades(self.values(|(x, _)| x));
            let y = decades(self.values(|(_, y)| y));
            self.curves(&mut builder.build_cartesian_2d(x.log_scale(), y.log_scale())?)
        } else {
            let x = 0.0..ceiling(self.values(|(x, _)| x).chain([self.reach.0]));
            let y = 0.0..self.top();
            self.curves(&mut builder.build_cartesian_2d(x, y)?)
        }
    }

    fn bars(&self, area: &Area<'_>) -> Drawn {
        let top = self.top();
        let right = f64::from(count(self.groups.len()));
        // The room above the highest bar is for its label.
        let mut builder = self.builder(area);
        let mut chart = builder.build_cartesian_2d(0.0..right, 0.0..top * 1.06)?;
        chart
            .configure_mesh()
            .disable_x_mesh()
            .x_labels(0)
            .x_desc(&self.x)
            .y_desc(&self.y)
            .axis_desc_style(font(LABEL + 1.0))
            .label_style(font(LABEL))
            .y_label_formatter(&number)
            .bold_line_style(GRID)
            .light_line_style(TRANSPARENT)
            .axis_style(AXIS)
            .draw()?;
        let plotted = chart.plotting_area();
        let width = 0.8 / f64::from(count(self.series.len().max(1)));
        let centred = font(NOTE).pos(Pos::new(HPos::Center, VPos::Bottom));
        for ((series, mark), place) in self.marked().zip(0_u32..) {
            for (group, value) in series.finite() {
                let x = group + 0.1 + width * f64::from(place);
                let corners = [(x, 0.0), (x + width * 0.92, value)];
                plotted.draw(&Rectangle::new(corners, mark.colour.filled()))?;
                let (x, y) = plotted.map_coordinate(&(x + width * 0.46, value));
                let label = Text::new(number(&value), on(area, (x, y - 3)), centred.clone());
                area.draw(&label)?;
            }
        }
        // Group names replace the labels of the axis.
        let below = font(LABEL + 1.0).pos(Pos::new(HPos::Center, VPos::Top));
        for (name, place) in self.groups.iter().zip(0_u32..) {
            let (x, y) = plotted.map_coordinate(&(f64::from(place) + 0.5, 0.0));
            let label = Text::new(name.clone(), on(area, (x, y + 8)), below.clone());
            area.draw(&label)?;
        }
        Ok(())
    }

    fn curves<X, Y>(&self, chart: &mut ChartContext<'_, SVGBackend<'_>, Cartesian2d<X, Y>>) -> Drawn
    where
        X: Ranged<ValueType = f64> + ValueFormatter<f64>,
        Y: Ranged<ValueType = f64> + ValueFormatter<f64>,
    {
        chart
            .configure_mesh()
            .x_desc(&self.x)
            .x_labels(self.x_labels())
            .y_desc(&self.y)
            .axis_desc_style(font(LABEL + 1.0))
            .label_style(font(LABEL))
            .x_label_formatter(&number)
            .y_label_formatter(&number)
            .bold_line_style(GRID)
            .light_line_style(TRANSPARENT)
            .axis_style(AXIS)
            .draw()?;
        let area = chart.plotting_area().strip_coord_spec();
        let mut shapes = Vec::new();
        for ((series, mark), place) in self.marked().zip(0_usize..) {
            let drawable = series
                .finite()
                // Zero has no logarithm.
                .filter(|&(x, y)| !self.logarithmic || x * y > 0.0);
            let pixels = drawable.map(|point| {
                let at = chart.plotting_area().map_coordinate(&point);
                on(&area, at)
            });
            let pixels: Vec<(i32, i32)> = pixels.collect();
            line(&area, mark, &pixels)?;
            let few = !series.dots && pixels.len() > SHAPES_ON_CURVE;
            let marked = pixels.iter().enumerate().filter(|&(index, _)| {
                let step = pixels.len() / SHAPES_ON_CURVE;
                // Curves may coincide, so their shapes are at different points.
                let first = place * step / self.series.len();
                !few || index % step == first
            });
            shapes.extend(marked.map(|(_, &at)| (mark, at)));
        }
        // Shapes are drawn last, so that no line hides one.
        shapes
            .into_iter()
            .try_for_each(|(mark, at)| mark.draw(&area, at))
    }

    fn builder<'a, 'b>(&self, area: &'a Area<'b>) -> ChartBuilder<'a, 'b, SVGBackend<'b>> {
        let mut builder = ChartBuilder::on(area);
        builder
            .margin(6)
            .margin_left(16)
            .margin_right(RIGHT)
            .x_label_area_size(46)
            .y_label_area_size(self.left());
        builder
    }

    /// Returns the end of the y axis.
    fn top(&self) -> f64 {
        ceiling(self.values(|(_, y)| y).chain([self.reach.1]))
    }

    /// Returns the room for the title and the labels of the y axis.
    fn left(&self) -> i32 {
        let ends = match self.logarithmic {
            true => decades(self.values(|(_, y)| y)),
            false => 0.0..self.top(),
        };
        let labels = [number(&ends.start), number(&ends.end)];
        let widest = labels.iter().map(|label| width(label, LABEL));
        let room = whole(widest.fold(0.0, f64::max)) + 36;
        i32::try_from(room).unwrap_or(LEFT).max(LEFT)
    }

    /// Returns the most labels for which the x axis has room.
    fn x_labels(&self) -> usize {
        let most = number(&self.values(|(x, _)| x).fold(0.0, f64::max));
        // Labels between two whole numbers have fractions.
        let widest = width(&most, LABEL).max(width("0.00", LABEL));
        let room = f64::from(pixels(WIDTH) - self.left() - 16 - RIGHT);
        (1..=20)
            .rev()
            .find(|&labels| index_f64(labels) * (widest + 24.0) <= room)
            .unwrap_or(1)
    }

    fn head(&self, area: &Area<'_>) -> Drawn {
        let bold = ("sans-serif", TITLE * LIBRARY_SIZE, FontStyle::Bold).into_text_style(area);
        let mut y = 14;
        for line in self.head_lines() {
            area.draw(&Text::new(line, (MARGIN, y), bold.clone()))?;
            y += pixels(TITLE_LINE);
        }
        Ok(())
    }

    fn legend(&self, area: &Area<'_>) -> Drawn {
        let columns = self.legend_columns();
        let column = (pixels(WIDTH) - 2 * MARGIN) / pixels(count(columns));
        let mut y = 8;
        let mut place = 0;
        for (series, mark) in self.marked() {
            let lines = self.legend_lines(series, columns);
            let x = MARGIN + column * pixels(count(place % columns));
            if !self.groups.is_empty() {
                let corners = [(x + 12, y - 6), (x + 24, y + 6)];
                area.draw(&Rectangle::new(corners, mark.colour.filled()))?;
            } else {
                if series.points.len() > 1 {
                    line(area, mark, &[(x, y), (x + 36, y)])?;
                }
                mark.draw(area, (x + 18, y))?;
            }
            for (text, down) in lines.iter().zip(0_u32..) {
                let at = (x + 44, y - 6 + pixels(LEGEND_LINE * down));
                area.draw(&Text::new(text.clone(), at, font(LABEL + 1.0)))?;
            }
            place += 1;
            if place % columns == 0 || place == self.series.len() {
                y += pixels(LEGEND_LINE * count(lines.len()));
            }
        }
        y += 2;
        for line in self.note_lines() {
            area.draw(&Text::new(line, (MARGIN, y - 4), font(NOTE)))?;
            y += pixels(NOTE_LINE);
        }
        Ok(())
    }

    /// Returns the number of columns of the legend. With more than one, each name fits in one line.
    fn legend_columns(&self) -> usize {
        let names = self.series.iter();
        let widest = names.fold(0.0, |most: f64, series| {
            most.max(width(&series.name, LABEL + 1.0))
        });
        let fits = |columns: &u32| widest + 60.0 <= inner_width() / f64::from(*columns);
        let columns = (1..=4).rev().find(fits).unwrap_or(1);
        (columns as usize).min(self.series.len()).max(1)
    }

    fn legend_lines(&self, series: &Series, columns: usize) -> Vec<String> {
        match columns {
            1 => wrapped(&series.name, LABEL + 1.0, inner_width() - 44.0),
            _ => vec![series.name.clone()],
        }
    }

    fn note_lines(&self) -> Vec<String> {
        wrapped(&self.note, NOTE, inner_width())
    }

    fn head_lines(&self) -> Vec<String> {
        // Bold letters are wider.
        wrapped(&self.heading(), TITLE * 1.1, inner_width())
    }

    fn head_height(&self) -> u32 {
        18 + TITLE_LINE * count(self.head_lines().len())
    }

    /// Returns the height of the image.
    fn height(&self) -> u32 {
        let columns = self.legend_columns();
        let legend: usize = match columns {
            1 => {
                let lines = self.series.iter();
                lines.map(|one| self.legend_lines(one, 1).len()).sum()
            }
            _ => self.series.len().div_ceil(columns),
        };
        let note = NOTE_LINE * count(self.note_lines().len());
        self.head_height() + PLOT_HEIGHT + LEGEND_LINE * count(legend) + note + 14
    }

    fn marked(&self) -> impl Iterator<Item = (&Series, Mark)> {
        let places = self.series.iter().zip(0..);
        places.map(|(series, place)| (series, Mark::of(place, series.hollow)))
    }

    fn values(&self, axis: fn((f64, f64)) -> f64) -> impl Iterator<Item = f64> {
        self.series.iter().flat_map(Series::finite).map(axis)
    }
}

/// Draws charts one below the other in one image.
///
/// # Errors
/// The drawing library cannot lay a chart out.
pub fn stack(charts: &[Chart]) -> Result<String, ChartError> {
    let mut inner = String::new();
    let mut height = 0;
    for chart in charts {
        let drawn = chart.svg()?;
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

/// Returns the font of `size` pixels.
fn font<'a>(size: f64) -> TextStyle<'a> {
    ("sans-serif", size * LIBRARY_SIZE).into_text_style(&(WIDTH, WIDTH))
}

/// Returns the place on `area` of a point of the whole image.
fn on(area: &Area<'_>, (x, y): (i32, i32)) -> (i32, i32) {
    let (left, top) = area.get_base_pixel();
    (x - left, y - top)
}

/// Draws a line through `points`, which are pixels.
fn line(area: &Area<'_>, mark: Mark, points: &[(i32, i32)]) -> Drawn {
    let style = mark.colour.stroke_width(2);
    match mark.dash {
        (_, 0) => area.draw(&PathElement::new(points, style)),
        (dash, gap) => {
            let points = points.iter().copied();
            area.draw(&DashedPathElement::new(points, dash, gap, style))
        }
    }
}

/// Returns the width between the margins.
fn inner_width() -> f64 {
    f64::from(pixels(WIDTH) - 2 * MARGIN)
}

fn count(len: usize) -> u32 {
    u32::try_from(len).unwrap_or(u32::MAX / 64)
}

fn pixels(len: u32) -> i32 {
    i32::try_from(len).unwrap_or(i32::MAX / 64)
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
    // A little less, because the library omits the label of a start that it rounds up.
    10_f64.powf(low) * 0.999_999_9..10_f64.powf(most.log10().ceil().max(low + 1.0))
}

#[cfg(test)]
pub(crate) mod tests;
