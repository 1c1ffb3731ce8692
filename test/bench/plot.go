package main

import (
	"fmt"
	"html"
	"strings"
)

// Measures of the plot, in pixels.
const (
	plotWidth  = 780
	labelWidth = 300
	barWidth   = 320
	barHeight  = 14
	lineHeight = 22
	margin     = 16
)

const (
	oursColour  = "#1f6feb"
	otherColour = "#b6bec9"
	textColour  = "#24292f"
	quietColour = "#6e7781"
)

// bar of the plot: its length is value ÷ full.
type bar struct {
	label, text, colour string
	value, full         float64
}

type panel struct {
	title string
	bars  []bar
}

// plot is an SVG of the starts that are compared in the same run, and of how much of the
// budgets is used.
func plot(r result) string {
	var panels []panel
	for _, id := range []string{"start", "apply"} {
		if row, ok := r.row(id); ok {
			panels = append(panels, compare(row))
		}
	}
	if p := budgets(r); len(p.bars) > 0 {
		panels = append(panels, p)
	}
	var body strings.Builder
	y := margin
	for _, p := range panels {
		y = p.draw(&body, y)
	}
	return fmt.Sprintf(`<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %d %d" `+
		`font-family="system-ui, sans-serif" font-size="13">
<rect width="100%%" height="100%%" rx="6" fill="#ffffff"/>
%s</svg>
`, plotWidth, y, plotWidth, y, body.String())
}

// compare draws a row's own figure and those beside it on one scale.
func compare(r row) panel {
	p := panel{title: strings.ReplaceAll(r.What, "`", "")}
	shown := append([]series{r.Ours}, r.Beside...)
	if r.ID == "apply" {
		shown = shown[:2] // the other pods only say where the time goes
	}
	full, colour := 0.0, oursColour
	for _, s := range shown {
		full = max(full, s.summary().Median)
	}
	for _, s := range shown {
		m := s.summary().Median
		p.bars = append(p.bars, bar{s.Name, fmt.Sprintf("%s %s", number(m), r.Unit), colour, m, full})
		colour = otherColour
	}
	return p
}

// budgets shows the sizes that have a limit, each as a share of its limit.
func budgets(r result) panel {
	p := panel{title: "size, as a share of the budget (the whole bar)"}
	for _, id := range []string{"launcher", "around-stopped", "control-plane", "images"} {
		if row, ok := r.row(id); ok {
			m := row.Ours.summary().Median
			text := fmt.Sprintf("%s of %g %s", number(m), row.Limit, row.Unit)
			p.bars = append(p.bars, bar{row.What, text, oursColour, m, row.Limit})
		}
	}
	return p
}

func (p panel) draw(w *strings.Builder, y int) int {
	text := func(x, y int, anchor, colour, weight, s string) {
		fmt.Fprintf(w, `<text x="%d" y="%d" text-anchor="%s" fill="%s" font-weight="%s">%s</text>`+"\n",
			x, y, anchor, colour, weight, html.EscapeString(s))
	}
	rectangle := func(x, y int, width, colour string) {
		fmt.Fprintf(w, `<rect x="%d" y="%d" width="%s" height="%d" rx="2" fill="%s"/>`+"\n", x, y, width, barHeight, colour)
	}
	text(margin, y+13, "start", textColour, "600", p.title)
	y += lineHeight + 4
	for _, b := range p.bars {
		x := margin + labelWidth
		text(x-10, y+12, "end", quietColour, "400", b.label)
		rectangle(x, y, fmt.Sprint(barWidth), "#f0f2f5")
		rectangle(x, y, fmt.Sprintf("%.1f", max(1, barWidth*min(1, b.value/b.full))), b.colour)
		text(x+barWidth+10, y+12, "start", textColour, "400", b.text)
		y += lineHeight
	}
	return y + margin
}
