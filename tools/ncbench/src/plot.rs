//! Figures as SVG: panels side by side over one legend, as in papers.
//!
//! A panel has lines over an axis, or bars where each series has one value. An axis is linear, or
//! logarithmic where values span decades. A paper's result is a dashed line across. Text uses the
//! viewer's sans serif; nothing else is loaded.

use std::fmt::{self, Write};

/// Panels with a title and one legend.
#[derive(Debug, Clone)]
pub struct Figure {
    /// Above all.
    pub title: String,
    /// Three in a row.
    pub panels: Vec<Panel>,
}

/// One diagram.
#[derive(Debug, Clone)]
pub struct Panel {
    /// Above it.
    pub title: String,
    /// What runs to the right, with its unit.
    pub x: String,
    /// What runs up, with its unit.
    pub y: String,
    /// What is drawn.
    pub series: Vec<Series>,
    /// Values to compare with: a name and where it lies on the y axis.
    pub marks: Vec<(String, f64)>,
}

/// Points of one contender, by rising x.
#[derive(Debug, Clone)]
pub struct Series {
    /// Series of one name look alike in all panels.
    pub name: String,
    /// x and y.
    pub points: Vec<(f64, f64)>,
}

impl Figure {
    /// The file's text.
    pub fn svg(&self) -> String {
        let mut svg = String::new();
        self.draw(&mut svg).expect("a string takes everything");
        svg
    }

    fn draw(&self, svg: &mut String) -> fmt::Result {
        let names = self.names();
        let columns = self.panels.len().clamp(1, COLUMNS);
        let width = as_f64(columns) * CELL_WIDTH + MARGIN;
        let legend = Legend::new(&names, width);
        let rows = self.panels.len().div_ceil(columns);
        let height = HEAD + as_f64(rows) * CELL_HEIGHT + legend.height + MARGIN;
        writeln!(
            svg,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.0} {height:.0}\" \
             width=\"{width:.0}\" height=\"{height:.0}\" font-family=\"system-ui, 'Segoe UI', \
             Helvetica, Arial, sans-serif\" font-size=\"11\" fill=\"#222\">"
        )?;
        writeln!(svg, "<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>")?;
        text(
            svg,
            (MARGIN, 24.0),
            "font-size=\"15\" font-weight=\"600\"",
            &self.title,
        )?;
        for (index, panel) in self.panels.iter().enumerate() {
            let (row, column) = (index / columns, index % columns);
            let corner = (
                as_f64(column) * CELL_WIDTH + LEFT,
                HEAD + as_f64(row) * CELL_HEIGHT + TOP,
            );
            Frame::new(panel, corner).draw(svg, panel, &names)?;
        }
        legend.draw(svg, &names, HEAD + as_f64(rows) * CELL_HEIGHT)?;
        writeln!(svg, "</svg>")
    }

    /// Of all series, in the order of their first appearance: each keeps its colour in every panel.
    fn names(&self) -> Vec<&str> {
        let mut names: Vec<&str> = Vec::new();
        for series in self.panels.iter().flat_map(|panel| &panel.series) {
            if !names.contains(&series.name.as_str()) {
                names.push(&series.name);
            }
        }
        names
    }
}

/// Where a panel's values lie on the page.
struct Frame {
    corner: (f64, f64),
    x: Scale,
    y: Scale,
    is_bars: bool,
}

impl Frame {
    fn new(panel: &Panel, corner: (f64, f64)) -> Self {
        let points = || {
            panel
                .series
                .iter()
                .flat_map(|series| series.points.iter().copied())
        };
        let marks = panel.marks.iter().map(|mark| mark.1);
        let is_bars = panel.series.iter().all(|series| series.points.len() <= 1);
        let x = Scale::new(points().map(|point| point.0), Base::Two, !is_bars);
        let y = Scale::new(
            points().map(|point| point.1).chain(marks),
            Base::Ten,
            !is_bars,
        );
        Self {
            corner,
            x,
            y,
            is_bars,
        }
    }

    fn at(&self, (x, y): (f64, f64)) -> (f64, f64) {
        (
            self.corner.0 + self.x.place(x) * WIDTH,
            self.corner.1 + (1.0 - self.y.place(y)) * HEIGHT,
        )
    }

    fn draw(&self, svg: &mut String, panel: &Panel, names: &[&str]) -> fmt::Result {
        let (left, top) = self.corner;
        text(svg, (left, top - 10.0), "font-weight=\"600\"", &panel.title)?;
        if self.is_bars {
            return self.draw_bars(svg, panel, names);
        }
        for tick in &self.y.ticks {
            let (_, y) = self.at((self.x.low, *tick));
            line(svg, (left, y), (left + WIDTH, y), "stroke=\"#e4e4e4\"")?;
            text(
                svg,
                (left - 6.0, y + 4.0),
                "text-anchor=\"end\"",
                &label(*tick),
            )?;
        }
        for tick in &self.x.ticks {
            let (x, _) = self.at((*tick, self.y.low));
            line(
                svg,
                (x, top + HEIGHT),
                (x, top + HEIGHT + 4.0),
                "stroke=\"#555\"",
            )?;
            text(
                svg,
                (x, top + HEIGHT + 16.0),
                "text-anchor=\"middle\"",
                &binary_label(*tick),
            )?;
        }
        line(
            svg,
            (left, top + HEIGHT),
            (left + WIDTH, top + HEIGHT),
            "stroke=\"#555\"",
        )?;
        let style = format!(
            "text-anchor=\"middle\" transform=\"rotate(-90 {:.1} {:.1})\"",
            left - 42.0,
            top + HEIGHT / 2.0
        );
        text(svg, (left - 42.0, top + HEIGHT / 2.0), &style, &panel.y)?;
        text(
            svg,
            (left + WIDTH / 2.0, top + HEIGHT + 32.0),
            "text-anchor=\"middle\"",
            &panel.x,
        )?;
        for (name, value) in &panel.marks {
            let (_, y) = self.at((self.x.low, *value));
            line(
                svg,
                (left, y),
                (left + WIDTH, y),
                "stroke=\"#888\" stroke-dasharray=\"5 4\"",
            )?;
            text(
                svg,
                (left + WIDTH - 2.0, y - 4.0),
                "text-anchor=\"end\" fill=\"#666\" font-size=\"10\"",
                name,
            )?;
        }
        self.lines(svg, panel, names)
    }

    /// Bars lie, so that their values run along the bottom.
    fn draw_bars(&self, svg: &mut String, panel: &Panel, names: &[&str]) -> fmt::Result {
        let (left, top) = self.corner;
        for tick in &self.y.ticks {
            let x = left + self.y.place(*tick) * WIDTH;
            line(svg, (x, top), (x, top + HEIGHT), "stroke=\"#e4e4e4\"")?;
            text(
                svg,
                (x, top + HEIGHT + 16.0),
                "text-anchor=\"middle\"",
                &label(*tick),
            )?;
        }
        line(svg, (left, top), (left, top + HEIGHT), "stroke=\"#555\"")?;
        text(
            svg,
            (left + WIDTH / 2.0, top + HEIGHT + 32.0),
            "text-anchor=\"middle\"",
            &panel.y,
        )?;
        self.bars(svg, panel, names)?;
        for (name, value) in &panel.marks {
            let x = left + self.y.place(*value) * WIDTH;
            line(
                svg,
                (x, top),
                (x, top + HEIGHT),
                "stroke=\"#888\" stroke-dasharray=\"5 4\"",
            )?;
            text(
                svg,
                (x + 3.0, top - 2.0),
                "fill=\"#666\" font-size=\"10\"",
                name,
            )?;
        }
        Ok(())
    }

    fn lines(&self, svg: &mut String, panel: &Panel, names: &[&str]) -> fmt::Result {
        for series in &panel.series {
            let style = Style::of(&series.name, names);
            let points: Vec<(f64, f64)> =
                series.points.iter().map(|&point| self.at(point)).collect();
            let path: Vec<String> = points
                .iter()
                .map(|(x, y)| format!("{x:.1},{y:.1}"))
                .collect();
            let (colour, dash) = (style.colour, style.dash);
            writeln!(
                svg,
                "<polyline fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.8\"{dash} \
                 points=\"{}\"/>",
                path.join(" ")
            )?;
            points
                .iter()
                .try_for_each(|&point| style.marker(svg, point))?;
        }
        Ok(())
    }

    /// Draws bars from left to right, each with its name and value where there is room: after a
    /// short bar, in a long one.
    fn bars(&self, svg: &mut String, panel: &Panel, names: &[&str]) -> fmt::Result {
        let step = HEIGHT / as_f64(panel.series.len().max(1));
        for (index, series) in panel.series.iter().enumerate() {
            let Some(&(_, value)) = series.points.first() else {
                continue;
            };
            let (left, top) = (self.corner.0, self.corner.1 + step * (as_f64(index) + 0.1));
            let (width, height) = (self.y.place(value) * WIDTH, step * 0.8);
            let colour = Style::of(&series.name, names).colour;
            writeln!(
                svg,
                "<rect x=\"{left:.1}\" y=\"{top:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" \
                 fill=\"{colour}\"/>"
            )?;
            let (middle, size) = (top + height / 2.0, step.min(12.0) * 0.85);
            let name = format!("{} {}", series.name, label(value));
            if width < WIDTH / 2.0 {
                text(
                    svg,
                    (left + width + 4.0, middle + size * 0.35),
                    &format!("font-size=\"{size:.1}\""),
                    &name,
                )?;
            } else {
                let style = format!("font-size=\"{size:.1}\" text-anchor=\"end\" fill=\"#fff\"");
                text(
                    svg,
                    (left + width - 4.0, middle + size * 0.35),
                    &style,
                    &name,
                )?;
            }
        }
        Ok(())
    }
}

/// From values to the unit interval.
struct Scale {
    low: f64,
    high: f64,
    is_log: bool,
    ticks: Vec<f64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Base {
    Two,
    Ten,
}

impl Scale {
    /// An axis over these values: logarithmic if allowed and if they span more than a linear axis
    /// shows well.
    fn new(values: impl Iterator<Item = f64>, base: Base, may_be_log: bool) -> Self {
        let values: Vec<f64> = values.filter(|value| value.is_finite()).collect();
        let least = values.iter().copied().fold(f64::INFINITY, f64::min);
        let most = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        if values.is_empty() || most <= 0.0 {
            return Self {
                low: 0.0,
                high: 1.0,
                is_log: false,
                ticks: vec![0.0, 1.0],
            };
        }
        let is_log = may_be_log
            && least > 0.0
            && most > least
            && (base == Base::Two || most / least > LINEAR_SPAN);
        match (is_log, base) {
            (true, Base::Two) => Self {
                low: least,
                high: most,
                is_log,
                ticks: powers_of_two(least, most),
            },
            (true, Base::Ten) => {
                let (low, high) = (
                    10_f64.powf(least.log10().floor()),
                    10_f64.powf(most.log10().ceil()),
                );
                let (low, high) = (tighten(low, least), high / tighten(1.0, high / most));
                Self {
                    low,
                    high,
                    is_log,
                    ticks: decimal_steps(low, high),
                }
            }
            (false, _) => {
                let step = nice_step(most / 5.0);
                let count = (most * 1.08 / step).ceil();
                let ticks = (0..)
                    .map(|index| f64::from(index) * step)
                    .take_while(|tick| *tick <= count * step * 1.001);
                Self {
                    low: 0.0,
                    high: count * step,
                    is_log,
                    ticks: ticks.collect(),
                }
            }
        }
    }

    fn place(&self, value: f64) -> f64 {
        let place = if self.is_log {
            (value / self.low).log2() / (self.high / self.low).log2()
        } else {
            (value - self.low) / (self.high - self.low)
        };
        place.clamp(0.0, 1.0)
    }
}

/// The largest of 1, 2 and 5 times `low` that is not above `value`.
fn tighten(low: f64, value: f64) -> f64 {
    [5.0, 2.0]
        .into_iter()
        .map(|factor| low * factor)
        .find(|&raised| raised <= value)
        .unwrap_or(low)
}

fn powers_of_two(low: f64, high: f64) -> Vec<f64> {
    let powers =
        (whole(low.log2().ceil())..=whole(high.log2().floor())).map(|power| 2_f64.powi(power));
    let all: Vec<f64> = powers.collect();
    let stride = all.len().div_ceil(X_TICKS_MAX).max(1);
    all.into_iter().step_by(stride).collect()
}

fn decimal_steps(low: f64, high: f64) -> Vec<f64> {
    let decades = whole(low.log10().floor())..=whole(high.log10().ceil());
    let steps: &[f64] = if high / low > 2000.0 {
        &[1.0]
    } else {
        &[1.0, 2.0, 5.0]
    };
    let ticks = decades.flat_map(|power| steps.iter().map(move |step| step * 10_f64.powi(power)));
    ticks
        .filter(|tick| (low * 0.999..=high * 1.001).contains(tick))
        .collect()
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "exponents of what can be measured"
)]
fn whole(exponent: f64) -> i32 {
    exponent as i32
}

/// The next of 1, 2, 5, 10 … above.
fn nice_step(step: f64) -> f64 {
    let power = 10_f64.powf(step.log10().floor());
    [1.0, 2.0, 5.0]
        .into_iter()
        .map(|factor| factor * power)
        .find(|&nice| nice >= step * 0.999)
        .unwrap_or(10.0 * power)
}

/// How a series looks: by its place among all.
struct Style {
    index: usize,
    colour: &'static str,
    dash: &'static str,
}

impl Style {
    fn of(name: &str, names: &[&str]) -> Self {
        let index = names.iter().position(|known| *known == name).unwrap_or(0);
        let dash = if index < COLOURS.len() {
            ""
        } else {
            " stroke-dasharray=\"2 2\""
        };
        Self {
            index,
            colour: COLOURS[index % COLOURS.len()],
            dash,
        }
    }

    fn marker(&self, svg: &mut String, (x, y): (f64, f64)) -> fmt::Result {
        let colour = self.colour;
        match self.index % 3 {
            0 => writeln!(
                svg,
                "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\" fill=\"{colour}\"/>"
            ),
            1 => {
                let (x, y) = (x - 2.8, y - 2.8);
                writeln!(
                    svg,
                    "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"5.6\" height=\"5.6\" \
                     fill=\"{colour}\"/>"
                )
            }
            _ => writeln!(
                svg,
                "<path d=\"M{x:.1} {:.1}l3.6 6.2h-7.2z\" fill=\"{colour}\"/>",
                y - 4.0
            ),
        }
    }
}

/// Names in rows that the page has room for.
struct Legend {
    places: Vec<(f64, f64)>,
    height: f64,
}

impl Legend {
    fn new(names: &[&str], width: f64) -> Self {
        let (mut x, mut y, mut places) = (MARGIN, 0.0, Vec::new());
        for name in names {
            let needed = 34.0 + as_f64(name.chars().count()) * 6.2;
            if x + needed > width - MARGIN && x > MARGIN {
                (x, y) = (MARGIN, y + 18.0);
            }
            places.push((x, y));
            x += needed;
        }
        Self {
            places,
            height: y + 18.0,
        }
    }

    fn draw(&self, svg: &mut String, names: &[&str], top: f64) -> fmt::Result {
        for (name, (x, y)) in names.iter().zip(&self.places) {
            let (style, y) = (Style::of(name, names), top + y + 6.0);
            let stroke = format!(
                "stroke=\"{}\" stroke-width=\"1.8\"{}",
                style.colour, style.dash
            );
            line(svg, (*x, y), (x + 20.0, y), &stroke)?;
            style.marker(svg, (x + 10.0, y))?;
            text(svg, (x + 25.0, y + 4.0), "", name)?;
        }
        Ok(())
    }
}

fn line(svg: &mut String, from: (f64, f64), to: (f64, f64), style: &str) -> fmt::Result {
    writeln!(
        svg,
        "<line x1=\"{:.1}\" y1=\"{:.1}\" x2=\"{:.1}\" y2=\"{:.1}\" {style}/>",
        from.0, from.1, to.0, to.1
    )
}

fn text(svg: &mut String, (x, y): (f64, f64), style: &str, content: &str) -> fmt::Result {
    let content = content
        .replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;");
    writeln!(
        svg,
        "<text x=\"{x:.1}\" y=\"{y:.1}\" {style}>{content}</text>"
    )
}

/// Three digits that count.
fn label(value: f64) -> String {
    let digits = match value.abs() {
        0.0 => 0,
        size if size >= 99.95 => 0,
        size if size >= 9.995 => 1,
        size if size >= 0.9995 => 2,
        _ => 4,
    };
    let text = format!("{value:.digits$}");
    if text.contains('.') {
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    } else {
        text
    }
}

/// Sizes as people say them: 16K for 16,384.
fn binary_label(value: f64) -> String {
    if value >= 1024.0 && (value / 1024.0).fract() == 0.0 {
        format!("{}K", label(value / 1024.0))
    } else {
        label(value)
    }
}

#[expect(clippy::cast_precision_loss, reason = "counts of what fits on a page")]
fn as_f64(count: usize) -> f64 {
    count as f64
}

/// Of Okabe and Ito: told apart by colour-blind readers too.
const COLOURS: [&str; 8] = [
    "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#7A5195",
];
const COLUMNS: usize = 3;
const CELL_WIDTH: f64 = 380.0;
const CELL_HEIGHT: f64 = 330.0;
const WIDTH: f64 = 300.0;
const HEIGHT: f64 = 230.0;
const LEFT: f64 = 68.0;
const TOP: f64 = 34.0;
const HEAD: f64 = 36.0;
const MARGIN: f64 = 16.0;
const X_TICKS_MAX: usize = 9;
/// Where values differ by more, small ones would lie on a linear axis's ground.
const LINEAR_SPAN: f64 = 12.0;

#[cfg(test)]
mod tests {
    use super::*;

    fn panel(title: &str, series: &[(&str, &[(f64, f64)])]) -> Panel {
        let series = series.iter().map(|(name, points)| Series {
            name: (*name).into(),
            points: points.to_vec(),
        });
        let marks = vec![("paper: 0.3".into(), 0.3)];
        Panel {
            title: title.into(),
            x: "k, bytes".into(),
            y: "GB/s".into(),
            series: series.collect(),
            marks,
        }
    }

    #[test]
    fn every_series_is_drawn_in_its_colour_and_named_once() {
        let figure = Figure {
            title: "A & B <now>".into(),
            panels: vec![
                panel(
                    "n=128",
                    &[
                        ("table", &[(16.0, 1.0), (2048.0, 50.0)]),
                        ("cpu", &[(16.0, 0.5), (2048.0, 9.0)]),
                    ],
                ),
                panel(
                    "n=256",
                    &[
                        ("cpu", &[(16.0, 0.2), (64.0, 0.4)]),
                        ("tensor", &[(16.0, 300.0), (64.0, 700.0)]),
                    ],
                ),
            ],
        };
        let svg = figure.svg();
        assert_eq!(svg.matches("<polyline").count(), 4);
        assert_eq!(svg.matches(">cpu</text>").count(), 1);
        let cpu = format!("stroke=\"{}\" stroke-width=\"1.8\"", COLOURS[1]);
        assert_eq!(svg.matches(&cpu).count(), 3, "two lines and the legend");
        assert!(
            svg.contains("A &amp; B &lt;now&gt;")
                && svg.contains(">2K</text>")
                && svg.contains("paper: 0.3")
        );
        assert_eq!(svg.matches("<svg").count(), 1);
        assert!(svg.ends_with("</svg>\n") && !svg.contains("NaN") && !svg.contains("inf"));
    }

    #[test]
    fn one_value_a_series_makes_bars() {
        let svg = Figure {
            title: "ladder".into(),
            panels: vec![panel(
                "n=128",
                &[("a", &[(1.0, 2.0)]), ("b", &[(1.0, 4.0)])],
            )],
        }
        .svg();
        assert_eq!(svg.matches("<polyline").count(), 0);
        assert!(svg.contains(COLOURS[0]) && svg.contains(COLOURS[1]));
    }

    #[test]
    fn axes_cover_their_values() {
        for values in [
            vec![1.0, 2.0, 3.0],
            vec![0.01, 900.0],
            vec![5.0],
            vec![0.0, 0.0],
            vec![],
            vec![70_000.0, 3.0],
        ] {
            for base in [Base::Two, Base::Ten] {
                let scale = Scale::new(values.iter().copied(), base, true);
                assert!(
                    scale.low < scale.high || values.len() == 1 || scale.is_log,
                    "{values:?}"
                );
                assert!(
                    scale.ticks.len() >= 2 || base == Base::Two,
                    "{values:?}: {:?}",
                    scale.ticks
                );
                for &value in &values {
                    assert!(
                        value >= scale.low * 0.999 && value <= scale.high * 1.001,
                        "{value} of {values:?}"
                    );
                    assert!((0.0..=1.0).contains(&scale.place(value)));
                }
            }
        }
    }

    #[test]
    fn numbers_are_short() {
        let labels: Vec<String> = [0.0, 0.02, 1.0, 2.5, 12.34, 700.0]
            .into_iter()
            .map(label)
            .collect();
        assert_eq!(labels, ["0", "0.02", "1", "2.5", "12.3", "700"]);
        assert_eq!(binary_label(16_384.0), "16K");
        assert_eq!(binary_label(128.0), "128");
    }
}
