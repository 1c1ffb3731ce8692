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
	label, text string
	value, full float64
	ours        bool
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
	return fmt.Sprintf(`<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %d %d" font-family="system-ui, sans-serif" font-size="13">
<rect width="100%%" height="100%%" rx="6" fill="#ffffff"/>
%s</svg>
`, plotWidth, y, plotWidth, y, body.String())
}

// compare draws a row's own figure and those beside it on one scale.
func compare(r row) panel {
	p := panel{title: strings.ReplaceAll(r.What, "`", "")}
	full := 0.0
	shown := append([]series{r.Ours}, r.Beside...)
	if r.ID == "apply" {
		shown = shown[:2] // the other pods only say where the time goes
	}
	for _, s := range shown {
		full = max(full, s.summary().Median)
	}
	for i, s := range shown {
		m := s.summary().Median
		p.bars = append(p.bars, bar{label: s.Name, text: fmt.Sprintf("%s %s", number(m), r.Unit), value: m, full: full, ours: i == 0})
	}
	return p
}

// budgets shows the sizes that have a limit, each as a share of its limit.
func budgets(r result) panel {
	p := panel{title: "size, as a share of the budget (the whole bar)"}
	for _, id := range []string{"launcher", "around-stopped", "control-plane", "images"} {
		row, ok := r.row(id)
		if !ok {
			continue
		}
		m := row.Ours.summary().Median
		p.bars = append(p.bars, bar{label: row.What, text: fmt.Sprintf("%s of %g %s", number(m), row.Limit, row.Unit), value: m, full: row.Limit, ours: true})
	}
	return p
}

func (p panel) draw(w *strings.Builder, y int) int {
	text := func(x, y int, anchor, colour, weight, s string) {
		fmt.Fprintf(w, `<text x="%d" y="%d" text-anchor="%s" fill="%s" font-weight="%s">%s</text>`+"\n", x, y, anchor, colour, weight, html.EscapeString(s))
	}
	text(margin, y+13, "start", textColour, "600", p.title)
	y += lineHeight + 4
	for _, b := range p.bars {
		colour := otherColour
		if b.ours {
			colour = oursColour
		}
		x := margin + labelWidth
		text(x-10, y+12, "end", quietColour, "400", b.label)
		fmt.Fprintf(w, `<rect x="%d" y="%d" width="%d" height="%d" rx="2" fill="#f0f2f5"/>`+"\n", x, y, barWidth, barHeight)
		fmt.Fprintf(w, `<rect x="%d" y="%d" width="%.1f" height="%d" rx="2" fill="%s"/>`+"\n", x, y, max(1, barWidth*min(1, b.value/b.full)), barHeight, colour)
		text(x+barWidth+10, y+12, "start", textColour, "400", b.text)
		y += lineHeight
	}
	return y + margin
}
