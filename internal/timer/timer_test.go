package timer

import (
	"testing"
	"testing/synctest"
	"time"
)

func TestWaitEndsByTimeOrStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		if !Wait(time.Minute, nil) || time.Since(begin) != time.Minute {
			t.Errorf("a minute took %s", time.Since(begin))
		}
		stop := make(chan struct{})
		time.AfterFunc(time.Second, func() { close(stop) })
		begin = time.Now()
		if Wait(time.Minute, stop) || time.Since(begin) != time.Second {
			t.Errorf("a wait that was stopped took %s", time.Since(begin))
		}
	})
}
