//! Colours, shapes and dashes, which distinguish the series of a chart.
//!
//! Each series differs from the others in its colour and in its shape, so a chart can be read in print and by
//! colour-blind readers. Lines are dashed differently, so a line under another one shows in its gaps.

use plotters::prelude::*;

/// The colours of Okabe and Ito, which most colour-blind readers can distinguish. Their yellow is omitted,
/// because it is too bright on white, and their black, which is the colour of text.
const COLOURS: [RGBColor; 7] = [
    RGBColor(0x00, 0x72, 0xb2),
    RGBColor(0xd5, 0x5e, 0x00),
    RGBColor(0x00, 0x9e, 0x73),
    RGBColor(0xcc, 0x79, 0xa7),
    RGBColor(0xe6, 0x9f, 0x00),
    RGBColor(0x56, 0xb4, 0xe9),
    RGBColor(0x60, 0x60, 0x60),
];
const SHAPES: [Shape; 6] = [
    Shape::Circle,
    Shape::Square,
    Shape::TriangleUp,
    Shape::Diamond,
    Shape::TriangleDown,
    Shape::Cross,
];
/// Lengths of a dash and of the gap after it in pixels. No gap is a solid line. Five, because charts often
/// have four systems for each scheduler, whose curves may coincide.
const DASHES: [(u32, u32); 5] = [(1, 0), (9, 5), (3, 4), (18, 5), (7, 2)];

/// A shape that marks points.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Shape {
    Circle,
    Square,
    TriangleUp,
    Diamond,
    TriangleDown,
    Cross,
}

/// The look of one series.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Mark {
    pub(super) colour: RGBColor,
    shape: Shape,
    pub(super) dash: (u32, u32),
    /// Whether shapes are drawn as outlines.
    hollow: bool,
}

impl Mark {
    /// Returns the look of the series at `place`. The first 42 places differ in colour or shape.
    pub(super) fn of(place: usize, hollow: bool) -> Self {
        Self {
            colour: COLOURS[place % COLOURS.len()],
            shape: SHAPES[place % SHAPES.len()],
            dash: DASHES[place % DASHES.len()],
            hollow,
        }
    }

    /// Draws the shape with its centre at `at`, in pixels.
    pub(super) fn draw(self, area: &super::Area<'_>, at: (i32, i32)) -> super::Drawn {
        if self.shape == Shape::Circle {
            area.draw(&Circle::new(at, 5, WHITE.filled()))?;
            return match self.hollow {
                true => area.draw(&Circle::new(at, 4, self.colour.stroke_width(2))),
                false => area.draw(&Circle::new(at, 4, self.colour.filled())),
            };
        }
        let outline: Vec<(i32, i32)> = self
            .outline()
            .iter()
            .map(|&(x, y)| (at.0 + x, at.1 + y))
            .collect();
        let closed: Vec<(i32, i32)> = outline.iter().chain(outline.first()).copied().collect();
        area.draw(&PathElement::new(closed.clone(), WHITE.stroke_width(3)))?;
        if !self.hollow {
            return area.draw(&Polygon::new(outline, self.colour.filled()));
        }
        area.draw(&Polygon::new(outline, WHITE.filled()))?;
        area.draw(&PathElement::new(closed, self.colour.stroke_width(2)))
    }

    /// Returns the corners around the centre.
    fn outline(self) -> &'static [(i32, i32)] {
        match self.shape {
            Shape::Circle => &[],
            Shape::Square => &[(-4, -4), (4, -4), (4, 4), (-4, 4)],
            Shape::TriangleUp => &[(0, -6), (5, 4), (-5, 4)],
            Shape::Diamond => &[(0, -6), (6, 0), (0, 6), (-6, 0)],
            Shape::TriangleDown => &[(0, 6), (5, -4), (-5, -4)],
            Shape::Cross => &[
                (-2, -6),
                (2, -6),
                (2, -2),
                (6, -2),
                (6, 2),
                (2, 2),
                (2, 6),
                (-2, 6),
                (-2, 2),
                (-6, 2),
                (-6, -2),
                (-2, -2),
            ],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_differ_in_colour_or_shape() {
        let marks: Vec<Mark> = (0..42).map(|place| Mark::of(place, false)).collect();
        for (at, mark) in marks.iter().enumerate() {
            let is_same = |other: &&Mark| (mark.colour, mark.shape) == (other.colour, other.shape);
            assert_eq!(marks.iter().filter(is_same).count(), 1, "{at}: {mark:?}");
        }
        // Neighbours differ in all three.
        for pair in marks[..6].windows(2) {
            assert!(pair[0].colour != pair[1].colour && pair[0].shape != pair[1].shape);
            assert_ne!(pair[0].dash, pair[1].dash);
        }
    }
}
