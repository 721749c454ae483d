//! Small line charts as inline SVG.

mod lines;

pub(crate) use lines::{At, Line, class, draw_lines};

use std::fmt::Write;

use crate::text::{escape, short};

const WIDTH: f64 = 360.0;
const HEIGHT: f64 = 168.0;
const LEFT: f64 = 46.0;
const RIGHT: f64 = 10.0;
const TOP: f64 = 10.0;
const BOTTOM: f64 = 24.0;
/// More points than this cannot be told apart at this width.
const MOST_POINTS: usize = 240;
/// With at most this many points each is marked and can be pointed at.
const MOST_MARKS: usize = 60;

/// A value at a step with the range drawn around it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Dot {
    pub(crate) step: u64,
    pub(crate) value: f64,
    pub(crate) range: Option<(f64, f64)>,
}

/// A drawn chart, and how many steps each of its points stands for.
pub(crate) struct Drawn {
    pub(crate) svg: String,
    pub(crate) steps_a_point: usize,
}

/// Draws values over steps; `bounds` fixes the vertical range, as for shares.
pub(crate) fn draw(label: &str, dots: &[Dot], bounds: Option<(f64, f64)>) -> Drawn {
    let steps_a_point = dots.len().div_ceil(MOST_POINTS).max(1);
    let dots = thin(dots, steps_a_point);
    let (low, high) = bounds.unwrap_or_else(|| vertical(&dots));
    let first = dots.first().map_or(0, |d| d.step);
    let last = dots.last().map_or(1, |d| d.step).max(first + 1);
    let x = |step: u64| LEFT + (step - first) as f64 / (last - first) as f64 * (WIDTH - LEFT - RIGHT);
    let y = |value: f64| TOP + (1.0 - (value.clamp(low, high) - low) / (high - low)) * (HEIGHT - TOP - BOTTOM);

    let mut svg = format!("<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{}\">", escape(label));
    for tick in ticks(low, high, 4) {
        let at = y(tick);
        let (end, text) = (WIDTH - RIGHT, LEFT - 6.0);
        put(&mut svg, format_args!("<line class=\"grid\" x1=\"{LEFT}\" x2=\"{end}\" y1=\"{at:.1}\" y2=\"{at:.1}\"/>"));
        let (below, number) = (at + 3.5, short(tick));
        put(&mut svg, format_args!("<text class=\"y\" x=\"{text}\" y=\"{below:.1}\">{number}</text>"));
    }
    for step in step_ticks(first, last) {
        let (at, below) = (x(step), HEIGHT - 8.0);
        put(&mut svg, format_args!("<text class=\"x\" x=\"{at:.1}\" y=\"{below}\">{step}</text>"));
    }
    band(&mut svg, &dots, &x, &y);
    let points: Vec<String> = dots.iter().map(|d| format!("{:.1},{:.1}", x(d.step), y(d.value))).collect();
    if points.len() > 1 {
        put(&mut svg, format_args!("<polyline class=\"line\" points=\"{}\"/>", points.join(" ")));
    }
    if dots.len() <= MOST_MARKS {
        for dot in &dots {
            let (cx, cy) = (x(dot.step), y(dot.value));
            let range = dot.range.map_or_else(String::new, |(l, h)| format!(" [{}, {}]", short(l), short(h)));
            let title = format!("step {}: {}{range}", dot.step, short(dot.value));
            put(
                &mut svg,
                format_args!(
                    "<circle class=\"dot\" cx=\"{cx:.1}\" cy=\"{cy:.1}\" r=\"2.4\"><title>{title}</title></circle>"
                ),
            );
        }
    }
    svg.push_str("</svg>");
    Drawn { svg, steps_a_point }
}

fn put(svg: &mut String, text: std::fmt::Arguments<'_>) {
    svg.write_fmt(text).expect("writing to a string cannot fail");
}

/// The range as an area, or as an upright line where there is a single point.
fn band(svg: &mut String, dots: &[Dot], x: &dyn Fn(u64) -> f64, y: &dyn Fn(f64) -> f64) {
    let ranged: Vec<(&Dot, (f64, f64))> = dots.iter().filter_map(|d| Some((d, d.range?))).collect();
    match ranged.as_slice() {
        [] => {}
        [(dot, (low, high))] => {
            let (at, from, to) = (x(dot.step), y(*low), y(*high));
            put(
                svg,
                format_args!("<line class=\"whisker\" x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"{from:.1}\" y2=\"{to:.1}\"/>"),
            );
        }
        many => {
            let upper = many.iter().map(|(d, r)| format!("{:.1},{:.1}", x(d.step), y(r.1)));
            let lower = many.iter().rev().map(|(d, r)| format!("{:.1},{:.1}", x(d.step), y(r.0)));
            let points: Vec<String> = upper.chain(lower).collect();
            put(svg, format_args!("<polygon class=\"band\" points=\"{}\"/>", points.join(" ")));
        }
    }
}

/// Joins neighbouring dots: their mean, in the range from the smallest to the largest, so that no spike is lost.
fn thin(dots: &[Dot], by: usize) -> Vec<Dot> {
    // Beyond this the arithmetic of the axes would overflow; nothing there can be read off anyway.
    let clamp = |v: f64| v.clamp(-1e300, 1e300);
    let finite = dots.iter().filter(|d| d.value.is_finite()).map(|d| Dot {
        value: clamp(d.value),
        range: d.range.filter(|(l, h)| l.is_finite() && h.is_finite()).map(|(l, h)| (clamp(l), clamp(h))),
        ..*d
    });
    let finite: Vec<Dot> = finite.collect();
    if by == 1 {
        return finite;
    }
    finite
        .chunks(by)
        .map(|chunk| {
            let low = chunk.iter().map(|d| d.value).fold(f64::INFINITY, f64::min);
            let high = chunk.iter().map(|d| d.value).fold(f64::NEG_INFINITY, f64::max);
            let value = chunk.iter().map(|d| d.value / chunk.len() as f64).sum();
            Dot { step: chunk[chunk.len() / 2].step, value, range: Some((low, high)) }
        })
        .collect()
}

fn vertical(dots: &[Dot]) -> (f64, f64) {
    let all =
        || dots.iter().flat_map(|d| [d.value, d.range.map_or(d.value, |r| r.0), d.range.map_or(d.value, |r| r.1)]);
    let (low, high) = (all().fold(f64::INFINITY, f64::min), all().fold(f64::NEG_INFINITY, f64::max));
    if low > high {
        return (0.0, 1.0);
    }
    let room = (high - low) * 0.06;
    if room > 0.0 && low + room > low {
        // A number that is never negative is drawn from 0 when that is near.
        let floor = if low >= 0.0 && low < (high - low) { 0.0 } else { low - room };
        (floor, high + room)
    } else {
        let around = (low.abs() * 0.1).max(f64::MIN_POSITIVE * 1e20).max(if low == 0.0 { 1.0 } else { 0.0 });
        (if low == 0.0 { 0.0 } else { low - around }, low + around)
    }
}

/// Round numbers within a range: multiples of 1, 2, 2.5 or 5 times a power of ten.
fn ticks(low: f64, high: f64, about: usize) -> Vec<f64> {
    let rough = (high - low) / about as f64;
    let power = 10f64.powf(rough.log10().floor());
    let step =
        [1.0, 2.0, 2.5, 5.0, 10.0].into_iter().map(|m| m * power).find(|s| *s >= 0.75 * rough).unwrap_or(power * 10.0);
    if !step.is_finite() || step <= 0.0 {
        return Vec::new();
    }
    let start = (low / step).ceil();
    (0..=2 * about).map(|i| (start + i as f64) * step).take_while(|t| *t <= high).collect()
}

fn step_ticks(first: u64, last: u64) -> Vec<u64> {
    let found = ticks(first as f64, last as f64, 5);
    let mut steps: Vec<u64> = found.into_iter().filter(|t| t.fract() == 0.0).map(|t| t as u64).collect();
    steps.dedup();
    steps
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dots(values: &[f64]) -> Vec<Dot> {
        values.iter().enumerate().map(|(i, v)| Dot { step: i as u64 + 1, value: *v, range: None }).collect()
    }

    #[test]
    fn points_stand_where_their_values_say() {
        let svg = draw("x", &dots(&[0.0, 0.5, 1.0]), Some((0.0, 1.0))).svg;
        let (bottom, middle) = (HEIGHT - BOTTOM, (TOP + HEIGHT - BOTTOM) / 2.0);
        let right = WIDTH - RIGHT;
        let centre = (LEFT + right) / 2.0;
        let want = format!("points=\"{LEFT:.1},{bottom:.1} {centre:.1},{middle:.1} {right:.1},{TOP:.1}\"");
        assert!(svg.contains(&want), "{svg}");
        assert!(svg.contains("<title>step 2: 0.5</title>"));
    }

    #[test]
    fn no_values_make_a_chart_with_a_number_that_is_none() {
        let cases: [&[f64]; 8] = [
            &[],
            &[0.0],
            &[3.0, 3.0],
            &[f64::NAN, 1.0],
            &[f64::INFINITY],
            &[-1.7e308, 1.7e308],
            &[5e-324, 0.0],
            &[1e300, 1.0000000000000002e300],
        ];
        for values in cases {
            let svg = draw("x", &dots(values), None).svg;
            assert!(!svg.contains("NaN") && !svg.contains("inf"), "{values:?}: {svg}");
        }
    }

    #[test]
    fn a_spike_among_many_steps_stays_visible() {
        let mut values = vec![1.0; 5000];
        values[2500] = 90.0;
        let drawn = draw("x", &dots(&values), None);
        assert_eq!(drawn.steps_a_point, 21);
        assert!(drawn.svg.len() < 20_000);
        let joined = thin(&dots(&values), 21);
        assert!(joined.iter().any(|d| d.range == Some((1.0, 90.0))));
    }

    #[test]
    fn ticks_are_round_numbers_inside_the_range() {
        assert_eq!(
            ticks(0.0, 1.0, 4).iter().map(|t| short(*t)).collect::<Vec<_>>(),
            ["0", "0.2", "0.4", "0.6", "0.8", "1"]
        );
        assert_eq!(ticks(3.0, 21.0, 4), [5.0, 10.0, 15.0, 20.0]);
        assert_eq!(step_ticks(1, 4), [1, 2, 3, 4]);
        assert_eq!(step_ticks(0, 1), [0, 1]);
    }
}
