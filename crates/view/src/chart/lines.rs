//! Several lines in one chart, each with its band.

use super::{BOTTOM, Dot, HEIGHT, LEFT, MOST_MARKS, MOST_POINTS, RIGHT, TOP, WIDTH, put, ticks, vertical};
use crate::text::{escape, short};

/// Colours there are; further lines take them again, broken.
pub(crate) const COLOURS: usize = 7;

/// One line of a chart.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Line {
    /// What it is called.
    pub(crate) name: String,
    /// Which colour it has; none for the one that the others are compared with.
    pub(crate) colour: Option<usize>,
    /// Its points, ascending.
    pub(crate) points: Vec<At>,
}

/// A value somewhere on the horizontal axis, with the range drawn around it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct At {
    pub(crate) x: f64,
    pub(crate) value: f64,
    pub(crate) range: Option<(f64, f64)>,
}

/// Draws lines over one horizontal axis, which begins at 0; `bounds` fixes the vertical range, as for shares.
///
/// - Holds: the last line lies on top; what is not finite is left out.
pub(crate) fn draw_lines(label: &str, lines: &[Line], bounds: Option<(f64, f64)>) -> String {
    let lines: Vec<Line> = lines.iter().map(|l| Line { points: thin(&l.points), ..l.clone() }).collect();
    let dots = lines.iter().flat_map(|l| &l.points).map(|p| Dot { step: 0, value: p.value, range: p.range });
    let (low, high) = bounds.unwrap_or_else(|| vertical(&dots.collect::<Vec<_>>()));
    let last = lines.iter().flat_map(|l| &l.points).map(|p| p.x).fold(0.0, f64::max);
    let last = if last > 0.0 { last } else { 1.0 };
    let x = |at: f64| LEFT + at / last * (WIDTH - LEFT - RIGHT);
    let y = |value: f64| TOP + (1.0 - (value.clamp(low, high) - low) / (high - low)) * (HEIGHT - TOP - BOTTOM);
    let mut svg = format!("<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{}\">", escape(label));
    for tick in ticks(low, high, 4) {
        let (at, end, text) = (y(tick), WIDTH - RIGHT, LEFT - 6.0);
        put(&mut svg, format_args!("<line class=\"grid\" x1=\"{LEFT}\" x2=\"{end}\" y1=\"{at:.1}\" y2=\"{at:.1}\"/>"));
        let (below, number) = (at + 3.5, short(tick));
        put(&mut svg, format_args!("<text class=\"y\" x=\"{text}\" y=\"{below:.1}\">{number}</text>"));
    }
    // Where everything stands at a whole number, as versions and tokens do, nothing stands between.
    let whole = lines.iter().flat_map(|l| &l.points).all(|p| p.x.fract() == 0.0);
    for tick in ticks(0.0, last, 4).into_iter().filter(|t| !whole || t.fract() == 0.0) {
        let (at, below, number) = (x(tick), HEIGHT - 8.0, short(tick));
        put(&mut svg, format_args!("<text class=\"x\" x=\"{at:.1}\" y=\"{below}\">{number}</text>"));
    }
    for line in &lines {
        let class = class(line.colour);
        let ranged: Vec<(&At, (f64, f64))> = line.points.iter().filter_map(|p| Some((p, p.range?))).collect();
        if ranged.len() > 1 {
            let upper = ranged.iter().map(|(p, r)| format!("{:.1},{:.1}", x(p.x), y(r.1)));
            let lower = ranged.iter().rev().map(|(p, r)| format!("{:.1},{:.1}", x(p.x), y(r.0)));
            let points: Vec<String> = upper.chain(lower).collect();
            put(&mut svg, format_args!("<polygon class=\"band {class}\" points=\"{}\"/>", points.join(" ")));
        }
    }
    for line in &lines {
        let class = class(line.colour);
        let points: Vec<String> = line.points.iter().map(|p| format!("{:.1},{:.1}", x(p.x), y(p.value))).collect();
        if points.len() > 1 {
            put(&mut svg, format_args!("<polyline class=\"line {class}\" points=\"{}\"/>", points.join(" ")));
        }
        for point in line.points.iter().filter(|_| line.points.len() <= MOST_MARKS) {
            let (cx, cy) = (x(point.x), y(point.value));
            let range = point.range.map_or_else(String::new, |(l, h)| format!(" [{}, {}]", short(l), short(h)));
            let title = format!("{}, {}: {}{range}", line.name, short(point.x), short(point.value));
            put(
                &mut svg,
                format_args!(
                    "<circle class=\"dot {class}\" cx=\"{cx:.1}\" cy=\"{cy:.1}\" r=\"2.2\"><title>{}</title></circle>",
                    escape(&title)
                ),
            );
        }
    }
    svg.push_str("</svg>");
    svg
}

/// The class of a line's colour.
pub(crate) fn class(colour: Option<usize>) -> String {
    match colour {
        None => "base".to_owned(),
        Some(n) if n < COLOURS => format!("c{n}"),
        Some(n) => format!("c{} broken", n % COLOURS),
    }
}

/// Joins neighbouring points beyond what can be told apart: their mean, in the range from the smallest to the largest.
fn thin(points: &[At]) -> Vec<At> {
    let clamp = |v: f64| v.clamp(-1e300, 1e300);
    let finite: Vec<At> = points
        .iter()
        .filter(|p| p.x.is_finite() && p.value.is_finite())
        .map(|p| At {
            value: clamp(p.value),
            range: p.range.filter(|(l, h)| l.is_finite() && h.is_finite()).map(|(l, h)| (clamp(l), clamp(h))),
            ..*p
        })
        .collect();
    let by = finite.len().div_ceil(MOST_POINTS).max(1);
    if by == 1 {
        return finite;
    }
    let join = |chunk: &[At]| {
        let n = chunk.len() as f64;
        let low = chunk.iter().map(|p| p.value).fold(f64::INFINITY, f64::min);
        let high = chunk.iter().map(|p| p.value).fold(f64::NEG_INFINITY, f64::max);
        let mean = |number: &dyn Fn(&At) -> f64| chunk.iter().map(|p| number(p) / n).sum::<f64>();
        At { x: mean(&|p| p.x), value: mean(&|p| p.value), range: Some((low, high)) }
    };
    finite.chunks(by).map(join).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(colour: Option<usize>, points: &[(f64, f64)]) -> Line {
        let at = |(x, value): &(f64, f64)| At { x: *x, value: *value, range: None };
        Line { name: "<n>".to_owned(), colour, points: points.iter().map(at).collect() }
    }

    #[test]
    fn lines_share_their_axes_and_the_base_has_no_colour_of_its_own() {
        let lines = [line(None, &[(0.0, 0.0), (50.0, 1.0)]), line(Some(1), &[(0.0, 0.5), (100.0, 0.5)])];
        let svg = draw_lines("x", &lines, Some((0.0, 1.0)));
        let (right, bottom) = (WIDTH - RIGHT, HEIGHT - BOTTOM);
        let (centre, middle) = ((LEFT + right) / 2.0, (TOP + bottom) / 2.0);
        let base = format!("class=\"line base\" points=\"{LEFT:.1},{bottom:.1} {centre:.1},{TOP:.1}\"");
        let other = format!("class=\"line c1\" points=\"{LEFT:.1},{middle:.1} {right:.1},{middle:.1}\"");
        assert!(svg.contains(&base) && svg.contains(&other), "{svg}");
        assert!(svg.contains("&lt;n&gt;, 100: 0.5") && !svg.contains("<n>"));
        assert_eq!(class(Some(COLOURS + 2)), "c2 broken");
    }

    #[test]
    fn no_values_make_a_chart_with_a_number_that_is_none() {
        for points in
            [&[][..], &[(0.0, 0.0)], &[(f64::NAN, 1.0), (1.0, f64::INFINITY)], &[(1.0, 1.7e308), (2.0, -1.7e308)]]
        {
            let svg = draw_lines("x", &[line(Some(0), points)], None);
            assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
        }
    }

    #[test]
    fn a_spike_among_many_steps_stays_visible() {
        let mut points: Vec<(f64, f64)> = (0..5000).map(|i| (f64::from(i), 1.0)).collect();
        points[2500].1 = 90.0;
        let joined = thin(&line(None, &points).points);
        assert!(joined.len() <= MOST_POINTS && joined.iter().any(|p| p.range == Some((1.0, 90.0))));
    }
}
