package web

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
)

// patience is how long anything may take, guests being emulated.
const patience = 4 * time.Minute

// kubectl runs it, and returns what it prints.
func kubectl(t *testing.T, stdin string, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, "kubectl", args...)
	cmd.Stdin = strings.NewReader(stdin)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("run kubectl %s: %v: %s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// proxy runs `kubectl proxy`, with more arguments, and returns its address.
func proxy(t *testing.T, more ...string) string {
	t.Helper()
	cmd := exec.Command("kubectl", append([]string{"proxy", "--port=0"}, more...)...)
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	address := regexp.MustCompile(`127\.0\.0\.1:\d+`).FindString(line)
	if err != nil || address == "" {
		t.Fatalf("kubectl proxy says %q: %v", line, err)
	}
	return "http://" + address
}

// browser is a tab of headless Chromium.
type browser struct {
	t   *testing.T
	ctx context.Context
}

// newBrowser starts one. What the page complains of fails the test: no error of its
// scripts and nothing that its policy refuses is wanted.
func newBrowser(t *testing.T) *browser {
	t.Helper()
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath("chromium"), chromedp.NoSandbox)
	ctx, cancel := chromedp.NewExecAllocator(context.Background(), options...)
	t.Cleanup(cancel)
	ctx, cancel = chromedp.NewContext(ctx)
	t.Cleanup(cancel)
	err := chromedp.Listen(ctx, func(event any) {
		switch e := event.(type) {
		case *runtime.EventExceptionThrown:
			t.Errorf("the page throws: %s %s", e.ExceptionDetails.Text, e.ExceptionDetails.Exception.Description)
		case *log.EventEntryAdded:
			ours := e.Entry.Source == log.EntrySourceSecurity || e.Entry.Source == log.EntrySourceJavascript
			// What another site's page may not, it says too; the page asks nobody else.
			if ours && !strings.Contains(e.Entry.Text, "CORS policy") {
				t.Errorf("the browser says: %s", e.Entry.Text)
			}
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	return &browser{t, ctx}
}

// do runs an action, and returns what it comes to.
func do[T any](b *browser, action chromedp.Action[T]) T {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, patience)
	defer cancel()
	value, err := chromedp.Run(ctx, action)
	if err != nil {
		b.t.Fatal(err)
	}
	return value
}

func (b *browser) open(address string) {
	b.t.Helper()
	do(b, chromedp.Navigate(address))
}

// eval returns what a script, which may be a promise, comes to.
func eval[T any](b *browser, script string) T {
	b.t.Helper()
	return do(b, chromedp.Evaluate[T](script, chromedp.EvalAwaitPromise))
}

// await waits until a script's value is true.
func (b *browser) await(what, script string) {
	b.t.Helper()
	deadline := time.Now().Add(patience)
	for !eval[bool](b, script) {
		if time.Now().After(deadline) {
			b.shoot("failed", 1280, 800, "light")
			b.t.Fatalf("%s: not within %s; the page says:\n%s", what, patience, eval[string](b, "document.body.innerText"))
		}
		time.Sleep(200 * time.Millisecond)
	}
}

// press presses keys, of package kb or letters.
func (b *browser) press(keys string) {
	b.t.Helper()
	do(b, chromedp.Func(func(ctx context.Context, t *chromedp.Target) error {
		for _, key := range keys {
			// The browser makes the letter of the key, unless the page has seen to it. What
			// chromedp.KeyEvent sends makes two.
			down, up := *kb.Encode(key)[0], *kb.Encode(key)[0]
			if k, ok := kb.Keys[key]; ok && k.Print {
				down.Text, down.UnmodifiedText = k.Text, k.Unmodified
			}
			up.Type = input.DispatchKeyEventTypeKeyUp
			for _, event := range []input.DispatchKeyEventParams{down, up} {
				if _, err := cdp.Call(ctx, t, input.DispatchKeyEvent, event); err != nil {
					return err
				}
			}
		}
		return nil
	}))
}

// focused is the accessible name of what has the focus.
func (b *browser) focused() string {
	b.t.Helper()
	return eval[string](b, `document.activeElement.getAttribute("aria-label") ?? document.activeElement.innerText ?? ""`)
}

// tabTo presses Tab until what has this name has the focus.
func (b *browser) tabTo(name string) {
	b.t.Helper()
	var passed []string
	for range 60 {
		now := b.focused()
		if now == name {
			return
		}
		passed = append(passed, now)
		b.press(kb.Tab)
	}
	slices.Sort(passed)
	passed = slices.Compact(passed)
	b.t.Fatalf("Tab does not lead to %q, but only to %q", name, passed)
}

// leave presses Ctrl+], which leaves the guest.
func (b *browser) leave() {
	b.t.Helper()
	do(b, chromedp.Func(func(ctx context.Context, t *chromedp.Target) error {
		key := input.DispatchKeyEventParams{Type: input.DispatchKeyEventTypeRawKeyDown, Modifiers: 2, Key: "]", Code: "BracketRight", WindowsVirtualKeyCode: 221}
		_, down := cdp.Call(ctx, t, input.DispatchKeyEvent, key)
		key.Type = input.DispatchKeyEventTypeKeyUp
		_, up := cdp.Call(ctx, t, input.DispatchKeyEvent, key)
		return errors.Join(down, up)
	}))
}

// look sets the window's size and whether it is light or dark.
func (b *browser) look(width, height int64, scheme string) {
	b.t.Helper()
	do(b, chromedp.EmulateViewport(width, height))
	do(b, chromedp.Func(func(ctx context.Context, t *chromedp.Target) error {
		_, err := cdp.Call(ctx, t, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
			Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}})
		return err
	}))
}

// shoot writes a screenshot to _output/web.
func (b *browser) shoot(name string, width, height int64, scheme string) {
	b.t.Helper()
	b.look(width, height, scheme)
	// What follows the size does so after it is drawn.
	eval[bool](b, `new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(() => done(true), 150))))`)
	png := do(b, chromedp.CaptureScreenshot())
	folder := filepath.Join("..", "..", "_output", "web")
	file := filepath.Join(folder, fmt.Sprintf("%s-%d-%s.png", name, width, scheme))
	if err := os.MkdirAll(folder, 0o755); err != nil {
		b.t.Fatal(err)
	}
	if err := os.WriteFile(file, png, 0o644); err != nil {
		b.t.Fatal(err)
	}
}

// shootAll takes it wide and narrow, light and dark, and leaves it wide and light.
func (b *browser) shootAll(name string) {
	b.t.Helper()
	for _, scheme := range []string{"dark", "light"} {
		b.shoot(name, 480, 860, scheme)
		if wide := eval[int](b, `document.documentElement.scrollWidth`); wide > 480 {
			b.t.Errorf("%s: %d pixels wide in a window of 480", name, wide)
		}
		b.shoot(name, 1280, 800, scheme)
	}
}

// nameless are what can be operated, or seen, and has no name that is spoken.
func (b *browser) nameless() {
	b.t.Helper()
	const script = `JSON.stringify([...document.querySelectorAll("button, input, a, select, textarea, [role=button], [role=application], dialog[open], ul")]
		.filter((e) => e.checkVisibility() && !(e.getAttribute("aria-label") || e.labels?.[0]?.innerText.trim() || e.innerText?.trim() ||
			document.getElementById(e.getAttribute("aria-labelledby"))?.innerText.trim()))
		.map((e) => e.outerHTML.slice(0, 120)))`
	var found []string
	if err := json.Unmarshal([]byte(eval[string](b, script)), &found); err != nil {
		b.t.Fatal(err)
	}
	for _, html := range found {
		b.t.Errorf("has no name: %s", html)
	}
}
